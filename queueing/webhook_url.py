"""Where a webhook may go: its URL's spelling, checked at submit; its addresses, at delivery.

A URL is accepted in its plainest spelling only and refused when two readers could see two hosts in
it; nothing is normalised, so nothing can be normalised differently by somebody else. Names are not
resolved at submit. At delivery every address of the name must be allowed, and the caller connects
to those addresses, never to the name again: between two look-ups a name can change its mind. Knows
nothing of HTTP, Redis or jobs. An egress proxy or a network policy is the second layer.
"""

import ipaddress
import re
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from queueing.errors import FailureCode, RequestError

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network
# Look a name up: host, port -> addresses in the order to try them. Raises OSError.
Resolver = Callable[[str, int], list[str]]

MAX_URL_CHARACTERS = 2_048

_SCHEME_PORTS = {"https": 443, "http": 80}
_URL = re.compile(
    r"(?P<scheme>https?)://(?P<host>\[[^\]]*\]|[^/?:\[\]]*)(:(?P<port>[1-9][0-9]{0,4}))?(?P<target>[/?].*)?"
)
_OUT_OF_PLACE = re.compile(r"[^\x21-\x7e]|[\\#]")
_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
# WHATWG's rule: a host whose last label is a number is an address in one of its many spellings.
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
# Names that mean this machine or this network wherever they are looked up, as a name without a dot
# does.
_LOCAL_SUFFIXES = ("localhost", "local", "internal", "intranet", "lan", "home.arpa", "corp", "home")

# What `is_global` lets through although nobody's receiver lives there: protocol assignments (with
# Teredo among them), 6to4 relays, 6to4 (which carries any IPv4 address) and documentation.
_NEVER_PUBLIC = tuple(
    ipaddress.ip_network(network)
    for network in ("192.0.0.0/24", "192.88.99.0/24", "2001::/23", "2002::/16", "3fff::/20")
)
_IPV6_PUBLIC = ipaddress.IPv6Network("2000::/3")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


@dataclass(frozen=True, slots=True)
class UrlPolicy:
    """What the operator allows beyond https to public addresses on port 443.

    `allow_networks` are networks of the operator's own; naming one also permits local names at
    submit, since their addresses are checked at delivery.
    """

    allow_http: bool = False
    allow_networks: tuple[IpNetwork, ...] = ()
    allowed_ports: frozenset[int] = frozenset({443})

    @classmethod
    def of(
        cls, *, allow_http: bool, allow_networks: Iterable[str], allowed_ports: Iterable[int] = ()
    ) -> "UrlPolicy":
        """Read a policy; `allowed_ports` add to the schemes' own. Raises ValueError."""
        schemes = {443, 80} if allow_http else {443}
        return cls(
            allow_http=allow_http,
            allow_networks=tuple(ipaddress.ip_network(network) for network in allow_networks),
            allowed_ports=frozenset(schemes | set(allowed_ports)),
        )

    def allows(self, address: IpAddress) -> bool:
        """Say whether a delivery may connect to this address."""
        address = _embedded(address)
        return any(address in network for network in self.allow_networks) or _is_public(address)


@dataclass(frozen=True, slots=True)
class WebhookTarget:
    """A checked URL in its parts: `host` without brackets, `target` from its first slash on."""

    scheme: str
    host: str
    port: int
    target: str

    @property
    def authority(self) -> str:
        """The Host header: brackets around IPv6, the port where it is not the scheme's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _SCHEME_PORTS[self.scheme] else f"{host}:{self.port}"


def check_webhook_url(url: str, policy: UrlPolicy, param: str = "webhook_url") -> None:
    """Raise RequestError unless a webhook may go to `url`, as far as its spelling tells."""
    webhook_target(url, policy, param)


def webhook_target(url: str, policy: UrlPolicy, param: str = "webhook_url") -> WebhookTarget:
    """Take a URL apart; raises what check_webhook_url raises."""
    match = _URL.fullmatch(url) if len(url) <= MAX_URL_CHARACTERS else None
    if match is None:
        raise _invalid(f"must read https://host/path, in {MAX_URL_CHARACTERS} characters", param)
    if not match["host"].isascii():
        # Unicode digits and dots are digits and dots to some readers; names have an ASCII form.
        raise _not_allowed(param)
    if _OUT_OF_PLACE.search(url):
        raise _invalid("holds a character that has no place in it", param)
    if match["scheme"] == "http" and not policy.allow_http:
        raise _invalid("must begin with https://", param)
    port = int(match["port"]) if match["port"] else _SCHEME_PORTS[match["scheme"]]
    if port not in policy.allowed_ports:
        raise _invalid("names a port that is not allowed", param)
    host = _checked_host(match["host"], policy, param)
    target = match["target"] or "/"
    return WebhookTarget(
        match["scheme"], host, port, target if target.startswith("/") else f"/{target}"
    )


def look_up(host: str, port: int) -> list[str]:
    """Ask the system's resolver, for as long as it takes; the Resolver of a running worker."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    return [str(address[0]) for _family, _type, _proto, _name, address in found]


def resolve_allowed(
    host: str, port: int, policy: UrlPolicy, resolver: Resolver = look_up
) -> tuple[str, ...]:
    """Return the addresses of a host, in the order to try them.

    Raises RequestError when any of them is not allowed (a name that mixes public and private
    addresses is an attack), OSError when there are none.
    """
    addresses = tuple(dict.fromkeys(resolver(host, port)))
    for address in addresses:
        if not policy.allows(ipaddress.ip_address(address)):
            raise _not_allowed(None)
    return addresses


def _checked_host(host: str, policy: UrlPolicy, param: str) -> str:
    literal = _literal_address(host, param)
    if literal is not None:
        if not policy.allows(literal):
            raise _not_allowed(param)
        return str(literal)
    labels = host.split(".")
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise _invalid("needs a host name in lower case and without a final dot", param)
    is_local = len(labels) == 1 or host.endswith(tuple(f".{name}" for name in _LOCAL_SUFFIXES))
    if is_local and not policy.allow_networks:
        raise _not_allowed(param)
    return host


def _literal_address(host: str, param: str) -> IpAddress | None:
    """Return the address a host spells, None for a name; refuse all but the usual spelling."""
    is_ipv6 = host.startswith("[")
    if not is_ipv6 and not _NUMBER.fullmatch(host.lower().rstrip(".").rpartition(".")[2]):
        return None
    try:
        address = ipaddress.IPv6Address(host[1:-1]) if is_ipv6 else ipaddress.IPv4Address(host)
    except ValueError as error:
        raise _not_allowed(param) from error
    if isinstance(address, ipaddress.IPv6Address) and address.scope_id is not None:
        raise _not_allowed(param)
    return address


def _embedded(address: IpAddress) -> IpAddress:
    """Return the IPv4 address that packets to a mapped or NAT64 address end up at."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _NAT64:
            return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    return address


def _is_public(address: IpAddress) -> bool:
    if isinstance(address, ipaddress.IPv6Address) and address not in _IPV6_PUBLIC:
        return False
    is_special = address.is_multicast or address.is_reserved
    return address.is_global and not is_special and not any(address in n for n in _NEVER_PUBLIC)


def _invalid(what: str, param: str) -> RequestError:
    return RequestError(FailureCode.INVALID_WEBHOOK_URL, f"the webhook URL {what}", param)


def _not_allowed(param: str | None) -> RequestError:
    # The same words whatever the reason: an answer must not tell where a name leads.
    return RequestError(
        FailureCode.WEBHOOK_URL_NOT_ALLOWED, "webhooks to this host are not allowed", param
    )
