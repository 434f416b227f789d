package webhook

import (
	"fmt"
	"net/netip"
	"syscall"
)

// guard allows connections only to public addresses and to the networks in it. It checks the address to which a socket
// is about to connect, after every lookup. So a name cannot resolve to one address for the check and to another for the
// use.
type guard []netip.Prefix

// privateError is the error for an address that the guard does not allow.
type privateError struct{ address netip.Addr }

func (e *privateError) Error() string {
	return fmt.Sprintf("%s is not a public address: to send there, add its network to AllowedNetworks", e.address)
}

// control is the Control function of a net.Dialer.
func (g guard) control(_, address string, _ syscall.RawConn) error {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return &configError{what: "the address to connect to is not an IP address"}
	}
	if ip := to.Addr().Unmap().WithZone(""); !g.allows(ip) {
		return &privateError{address: ip}
	}
	return nil
}

func (g guard) allows(ip netip.Addr) bool {
	for _, network := range g {
		if network.Contains(ip) {
			return true
		}
	}
	return isPublic(ip)
}

// special are the networks that the IANA registries list as not globally reachable, the networks that lead to such ones
// (https://www.iana.org/assignments/iana-ipv4-special-registry, .../iana-ipv6-special-registry), and multicast. For
// IPv6 it lists only networks in 2000::/3: other addresses are not assigned.
var special = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"),        // this network
	netip.MustParsePrefix("10.0.0.0/8"),       // private
	netip.MustParsePrefix("100.64.0.0/10"),    // shared by a carrier's customers
	netip.MustParsePrefix("127.0.0.0/8"),      // loopback
	netip.MustParsePrefix("168.63.129.16/32"), // the host's service on Azure, although the network is public
	netip.MustParsePrefix("169.254.0.0/16"),   // link-local
	netip.MustParsePrefix("172.16.0.0/12"),    // private
	netip.MustParsePrefix("192.0.0.0/24"),     // protocol assignments
	netip.MustParsePrefix("192.0.2.0/24"),     // documentation
	netip.MustParsePrefix("192.88.99.0/24"),   // 6to4 relays
	netip.MustParsePrefix("192.168.0.0/16"),   // private
	netip.MustParsePrefix("198.18.0.0/15"),    // benchmarks
	netip.MustParsePrefix("198.51.100.0/24"),  // documentation
	netip.MustParsePrefix("203.0.113.0/24"),   // documentation
	netip.MustParsePrefix("224.0.0.0/4"),      // multicast
	netip.MustParsePrefix("240.0.0.0/4"),      // reserved, broadcast
	netip.MustParsePrefix("2001::/23"),        // protocol assignments, Teredo
	netip.MustParsePrefix("2001:db8::/32"),    // documentation
	netip.MustParsePrefix("2002::/16"),        // 6to4: an IPv4 address within
	netip.MustParsePrefix("3fff::/20"),        // documentation
}

var (
	global = netip.MustParsePrefix("2000::/3")
	nat64  = netip.MustParsePrefix("64:ff9b::/96") // an IPv4 address in the last four bytes
)

func isPublic(ip netip.Addr) bool {
	if nat64.Contains(ip) {
		b := ip.As16()
		ip = netip.AddrFrom4([4]byte(b[12:]))
	}
	if ip.Is6() && !global.Contains(ip) {
		return false
	}
	for _, network := range special {
		if network.Contains(ip) {
			return false
		}
	}
	return ip.IsValid()
}
