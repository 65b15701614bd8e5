import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queueing.errors import FailureCode, RequestError
from queueing.webhook_url import (
    UrlPolicy,
    WebhookTarget,
    check_webhook_url,
    resolve_allowed,
    webhook_target,
)

STRICT = UrlPolicy()
PRIVATE_NETWORKS = ("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16")


def refusal(url, policy=STRICT):
    with pytest.raises(RequestError) as caught:
        check_webhook_url(url, policy)
    return caught.value


@pytest.mark.parametrize(
    "url",
    [
        "https://hooks.example.com/in?job=1",
        "https://hooks.example.com:443",
        "https://93.184.216.34/in",
        "https://[2606:2800:220:1:248:1893:25c8:1946]/in",
        "https://xn--bcher-kva.example/in",
        "https://a_b.example.com/",
    ],
)
def test_a_public_https_url_is_accepted(url):
    check_webhook_url(url, STRICT)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "hooks.example.com/in",
        "//hooks.example.com/in",
        "http://hooks.example.com/in",
        "HTTPS://hooks.example.com/in",
        "file:///etc/passwd",
        "gopher://hooks.example.com/",
        "https://",
        "https:///in",
        "https://user:pass@hooks.example.com/",
        "https://user@hooks.example.com/",
        "https://user:443@127.0.0.1/",
        "https://hooks.example.com#@127.0.0.1/",
        "https://hooks.example.com\\@127.0.0.1/",
        "https://hooks.example.com:22/",
        "https://hooks.example.com:25/",
        "https://hooks.example.com:6379/",
        "https://hooks.example.com:0443/",
        "https://hooks.example.com:/",
        "https://hooks.example.com:99999/",
        "https://hooks.example.com./",
        "https://Hooks.example.com/",
        "https://hooks..example.com/",
        "https://-hooks.example.com/",
        "https://hooks.example.com/a b",
        "https://hooks.example.com/\r\nX-Injected: 1",
        "https://hooks.example.com/\x00",
        "https://hooks.example.com/b\u00fccher",
        "https://[::1/",
        "https://::1/",
        "https://" + "a" * 64 + ".example.com/",
        "https://" + "a." * 127 + "example/",
        "https://hooks.example.com/" + "a" * 2_048,
    ],
)
def test_a_url_that_is_not_plain_https_is_invalid(url):
    assert refusal(url).code is FailureCode.INVALID_WEBHOOK_URL


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.0.0.1.",
        "127.1",
        "127.0.1",
        "2130706433",
        "0x7f.1",
        "0x7f000001",
        "0177.0.0.1",
        "017700000001",
        "127.0.0.0x1",
        "127.0.0.256",
        "1.2.3.4.5",
        "%31%32%37.0.0.1",
        "[::1]",
        "[0:0:0:0:0:0:0:1]",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::127.0.0.1]",
        "[64:ff9b::7f00:1]",
        "[64:ff9b:1::7f00:1]",
        "[2002:7f00:1::]",
        "[2001:0:7f00:1::]",
        "[2001:db8::1]",
        "[3fff::1]",
        "[5f00::1]",
        "[fec0::1]",
        "[fe80::1]",
        "[fe80::1%25lo]",
        "[2606:2800:220:1:248:1893:25c8:1946%25lo]",
        "[fd00:ec2::254]",
        "[ff02::1]",
        "[v1.fe80::a]",
        "0.0.0.0",  # noqa: S104 - no binding, a host in a URL
        "10.1.2.3",
        "172.16.0.1",
        "172.31.255.255",
        "192.168.0.1",
        "100.64.0.1",
        "169.254.169.254",
        "192.0.0.9",
        "192.0.2.1",
        "192.88.99.1",
        "198.18.0.1",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "localhost",
        "receiver",
        "api.localhost",
        "metadata.google.internal",
        "printer.local",
        "router.home.arpa",
        "\u2460\u2461\u2466.0.0.1",
        "127\u30020.0.1",
        "\uff11\uff12\uff17.0.0.1",
        "ex\u00e4mple.com",
        "hooks.example.com\u2044.evil.example",
    ],
)
def test_every_spelling_of_an_inner_host_is_refused_in_the_same_words(host):
    refused = refusal(f"https://{host}/in")

    assert refused.code is FailureCode.WEBHOOK_URL_NOT_ALLOWED
    assert refused.message == "webhooks to this host are not allowed"
    assert refused.param == "webhook_url"


@given(st.sampled_from(PRIVATE_NETWORKS), st.integers(min_value=0), st.integers(0, 6))
def test_no_private_ipv4_address_passes_however_it_is_written(network, offset, spelling):
    inside = ipaddress.ip_network(network)
    address = inside[offset % inside.num_addresses]
    number = int(address)
    spellings = (
        str(address),
        str(number),
        hex(number),
        f"0{number:o}",
        f"[::ffff:{address}]",
        f"[{ipaddress.IPv6Address((0x64FF9B << 96) | number)}]",
        f"[{ipaddress.IPv6Address((0x2002 << 112) | (number << 80))}]",
    )

    refused = refusal(f"https://{spellings[spelling]}/")

    assert refused.code is FailureCode.WEBHOOK_URL_NOT_ALLOWED


@given(st.text(max_size=60))
def test_any_text_is_accepted_or_refused_and_never_breaks(text):
    try:
        accepted = webhook_target(f"https://{text}", STRICT)
    except RequestError:
        accepted = None

    assert accepted is None or accepted.port == 443


def test_a_url_is_taken_apart_as_it_is_written():
    policy = UrlPolicy.of(allow_http=True, allow_networks=["127.0.0.0/8"], allowed_ports=[8443])

    target = webhook_target("http://127.0.0.1:8443?a=/b", policy)

    assert target == WebhookTarget("http", "127.0.0.1", 8443, "/?a=/b")
    assert target.authority == "127.0.0.1:8443"
    assert (
        webhook_target(
            "https://[fd00::1]/", UrlPolicy.of(allow_http=False, allow_networks=["fd00::/8"])
        ).authority
        == "[fd00::1]"
    )


def test_an_operator_can_open_a_network_of_his_own():
    policy = UrlPolicy.of(allow_http=False, allow_networks=["192.168.7.0/24", "fd00::/8"])

    check_webhook_url("https://192.168.7.9/", policy)
    check_webhook_url("https://[::ffff:192.168.7.9]/", policy)
    check_webhook_url("https://[fd00::9]/", policy)
    check_webhook_url("https://receiver/", policy)

    assert refusal("https://192.168.8.9/", policy).code is FailureCode.WEBHOOK_URL_NOT_ALLOWED


def test_a_switch_permits_http_and_its_port():
    policy = UrlPolicy.of(allow_http=True, allow_networks=[])

    check_webhook_url("http://hooks.example.com/in", policy)

    assert refusal("http://hooks.example.com:8080/in", policy).param == "webhook_url"


def test_a_name_resolves_to_all_its_addresses_in_order():
    addresses = resolve_allowed(
        "hooks.example.com",
        443,
        STRICT,
        lambda _host, _port: ["2606:2800:220:1::1", "93.184.216.34", "93.184.216.34"],
    )

    assert addresses == ("2606:2800:220:1::1", "93.184.216.34")


@pytest.mark.parametrize(
    "inner", ["127.0.0.1", "::1", "::ffff:10.0.0.1", "64:ff9b::a00:1", "fe80::1%lo", "fec0::1"]
)
def test_a_name_with_one_inner_address_among_public_ones_is_refused(inner):
    with pytest.raises(RequestError) as caught:
        resolve_allowed("rebound.example", 443, STRICT, lambda _h, _p: ["93.184.216.34", inner])

    assert caught.value.code is FailureCode.WEBHOOK_URL_NOT_ALLOWED


def test_nat64_leads_to_a_public_receiver():
    addresses = resolve_allowed("a.example", 443, STRICT, lambda _h, _p: ["64:ff9b::5db8:d822"])

    assert addresses == ("64:ff9b::5db8:d822",)
