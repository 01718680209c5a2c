import pytest

from codec.vocabulary import TrustZone
from worker.core.hosts import Destination, DestinationError, address_allowed, read_url, zone_of_host

LOCAL, PRIVATE, EU, GLOBAL = TrustZone


def at(host: str, port: int = 443, *, literal: bool = False) -> Destination:
    return Destination(scheme="https", host=host, port=port, literal=literal)


@pytest.mark.parametrize(
    ("url", "expected", "netloc"),
    [
        ("https://Tickets.example/a?b=c#d", at("tickets.example"), "tickets.example"),
        ("https://tickets.example:8443", at("tickets.example", 8443), "tickets.example:8443"),
        ("https://tickets.example:443/", at("tickets.example"), "tickets.example"),
        ("https://127.0.0.1/", at("127.0.0.1", literal=True), "127.0.0.1"),
        ("https://[::1]:8443/", at("::1", 8443, literal=True), "[::1]:8443"),
        ("https://[::FFFF:1.2.3.4]/", at("::ffff:1.2.3.4", literal=True), "[::ffff:1.2.3.4]"),
        ("https://2130706433/", at("2130706433"), "2130706433"),
    ],
)
def test_a_url_names_a_host(url: str, expected: Destination, netloc: str) -> None:
    assert expected == read_url(url)
    assert netloc == read_url(url).netloc


def test_the_port_of_http_is_80() -> None:
    assert 80 == read_url("HTTP://a.example").port


@pytest.mark.parametrize(
    "url",
    [
        "",
        "tickets.example",
        "//tickets.example/",
        "ftp://tickets.example/",
        "file:///etc/passwd",
        "https:///path",
        "https://ada@tickets.example/",
        "https://ada:word@tickets.example/",
        "https://@tickets.example/",
        "https://tickets.example\\@evil.example/",
        "https://tickets.example\t.evil.example/",
        "https://tickets.example/ evil",
        "https://tickets.example\n/",
        " https://tickets.example/",
        "https://bücher.example/",
        "https://tickets%2eexample/",
        "https://tickets.example:0/",
        "https://tickets.example:99999/",
        "https://tickets.example:x/",
        "https://[::1/",
        "https://[fe80::1%25eth0]/",
        "https://[::g]/",
        "https://[v1.a]/",
        "https://[127.0.0.1.evil]/",
        "https://[127.0.0.1]/",
        "https://[::1]evil/",
        "https://evil[::1]/",
        "https://tickets.example:/",
        "https://tickets.example:１/",
        "https://" + "a" * 254 + "/",
        "https://a.example/" + "a" * 8192,
    ],
)
def test_a_url_that_can_be_read_in_two_ways_is_refused(url: str) -> None:
    with pytest.raises(DestinationError) as caught:
        read_url(url)

    assert "example" not in str(caught.value)


def test_records_are_compared_exactly_and_the_port_comes_first() -> None:
    egress = {"Tickets.example": EU, "tickets.example:8443": PRIVATE, "other.example:443": LOCAL}

    assert EU is zone_of_host(at("tickets.example"), egress)
    assert PRIVATE is zone_of_host(at("tickets.example", 8443), egress)
    assert LOCAL is zone_of_host(at("other.example"), egress)
    assert None is zone_of_host(at("other.example", 8443), egress)
    assert None is zone_of_host(at("sub.tickets.example"), egress)
    assert None is zone_of_host(at("tickets.example."), egress)


@pytest.mark.parametrize("record", ["::1", "[::1]", "[::1]:443"])
def test_an_ipv6_record_may_stand_in_brackets(record: str) -> None:
    assert LOCAL is zone_of_host(at("::1", literal=True), {record: LOCAL})


@pytest.mark.parametrize("zone", list(TrustZone))
def test_a_name_may_lead_to_public_addresses(zone: TrustZone) -> None:
    assert address_allowed(at("a.example"), "93.184.216.34", zone)
    assert address_allowed(at("a.example"), "2606:4700::1111", zone)


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "::1", "10.1.2.3", "172.31.0.1", "192.168.1.1", "100.64.0.1", "fd00::1"]
)
def test_a_name_leads_into_a_private_network_only_from_a_private_zone(address: str) -> None:
    allowed = [zone for zone in TrustZone if address_allowed(at("a.example"), address, zone)]

    assert [LOCAL, PRIVATE] == allowed


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0",
        "::",
        "169.254.169.254",
        "fe80::1",
        "fe80::1%eth0",
        "fec0::1",
        "224.0.0.1",
        "ff02::1",
        "240.0.0.1",
        "255.255.255.255",
        "192.0.2.1",
        "198.18.0.1",
        "2001:db8::1",
        "::ffff:127.0.0.1",
        "::ffff:8.8.8.8",
        "::7f00:1",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
        "2001:0:1::1",
        "not an address",
        "",
    ],
)
@pytest.mark.parametrize("zone", list(TrustZone))
def test_no_name_leads_to_a_special_or_hidden_address(address: str, zone: TrustZone) -> None:
    assert not address_allowed(at("a.example"), address, zone)


def test_localhost_is_this_machine_in_any_zone() -> None:
    assert address_allowed(at("localhost"), "127.0.0.1", GLOBAL)
    assert address_allowed(at("localhost"), "::1", GLOBAL)
    assert not address_allowed(at("localhost"), "10.0.0.1", LOCAL)
    assert not address_allowed(at("localhost"), "93.184.216.34", LOCAL)


@pytest.mark.parametrize("address", ["127.0.0.1", "169.254.169.254", "::1", "::ffff:10.0.0.1"])
def test_a_listed_address_is_the_operators_word_for_this_address_alone(address: str) -> None:
    assert address_allowed(at(address, literal=True), address, GLOBAL)
    assert not address_allowed(at(address, literal=True), "10.9.9.9", LOCAL)
