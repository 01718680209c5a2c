"""Where the views are."""

from __future__ import annotations

from django.urls import path

from shop import views

urlpatterns = [
    path("orders", views.place),
    path("orders/<int:number>", views.look),
    path("orders/<int:number>/approve", views.approve),
]
