"""What commands print for people. Texts of models, tools and people are made harmless before they reach a terminal."""
