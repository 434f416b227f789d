package webhook

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestGuardKnowsAddresses(t *testing.T) {
	t.Parallel()
	for address, public := range map[string]bool{
		"1.1.1.1":                  true,
		"93.184.216.34":            true,
		"172.15.255.255":           true,
		"172.32.0.1":               true,
		"100.63.255.255":           true,
		"100.128.0.1":              true,
		"2606:4700:4700::1111":     true,
		"2a00:1450:4001:81b::200e": true,
		"::ffff:1.1.1.1":           true,
		"64:ff9b::1.1.1.1":         true,

		"0.0.0.0":                false,
		"0.1.2.3":                false,
		"10.0.0.1":               false,
		"100.64.0.1":             false,
		"100.100.100.200":        false,
		"127.0.0.1":              false,
		"127.255.255.254":        false,
		"168.63.129.16":          false,
		"169.254.169.254":        false,
		"172.16.0.1":             false,
		"172.31.255.255":         false,
		"192.0.0.192":            false,
		"192.0.2.1":              false,
		"192.88.99.1":            false,
		"192.168.1.1":            false,
		"198.19.0.1":             false,
		"198.51.100.1":           false,
		"203.0.113.1":            false,
		"224.0.0.1":              false,
		"239.255.255.255":        false,
		"240.0.0.1":              false,
		"255.255.255.255":        false,
		"::":                     false,
		"::1":                    false,
		"::127.0.0.1":            false,
		"::ffff:127.0.0.1":       false,
		"::ffff:169.254.169.254": false,
		"64:ff9b::10.0.0.1":      false,
		"64:ff9b:1::1":           false,
		"100::1":                 false,
		"2001::1":                false,
		"2001:db8::1":            false,
		"2002:7f00:1::1":         false,
		"3fff::1":                false,
		"4000::1":                false,
		"fc00::1":                false,
		"fd00:ec2::254":          false,
		"fe80::1":                false,
		"fe80::1%eth0":           false,
		"fec0::1":                false,
		"ff02::1":                false,
	} {
		ip := netip.MustParseAddr(address)
		err := guard(nil).control("tcp", netip.AddrPortFrom(ip, 443).String(), nil)
		require.Equal(t, public, err == nil, "%s: %v", address, err)
	}
}

func TestGuardAllowsWhatIsConfigured(t *testing.T) {
	t.Parallel()
	g := guard{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00::/8")}
	for address, allowed := range map[string]bool{
		"10.1.2.3": true, "::ffff:10.1.2.3": true, "10.2.0.1": false, "127.0.0.1": false, "fd00::1": true, "fd00::1%eth0": true, "fc00::1": false,
		"1.1.1.1": true,
	} {
		require.Equal(t, allowed, g.control("tcp", netip.AddrPortFrom(netip.MustParseAddr(address), 80).String(), nil) == nil, address)
	}
	require.Error(t, g.control("unix", "/var/run/docker.sock", nil))
	require.False(t, isPublic(netip.Addr{}))
}
