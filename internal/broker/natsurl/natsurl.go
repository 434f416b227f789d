// Package natsurl reads the lists of server addresses that NATS clients take.
package natsurl

import (
	"net/url"
	"strings"
)

// Valid reports whether the client can parse a list of servers. The client's own error would quote a password.
func Valid(list string) bool {
	for _, one := range Servers(list) {
		if !strings.Contains(one, "://") {
			one = "nats://" + one
		}
		u, err := url.Parse(one)
		// With an unescaped slash in a password, the part before it would be the host.
		if err != nil || u.Hostname() == "" || strings.Contains(u.Path, "@") {
			return false
		}
	}
	return true
}

// Servers returns the URLs of a list.
func Servers(list string) []string {
	urls := strings.Split(list, ",")
	for i := range urls {
		urls[i] = strings.TrimSpace(urls[i])
	}
	return urls
}

// WithoutCredentials returns a list of URLs as a list of addresses.
func WithoutCredentials(urls string) string {
	if !Valid(urls) {
		return "[masked]"
	}
	var addresses []string
	for _, one := range Servers(urls) {
		if at := strings.LastIndex(one, "@"); at >= 0 {
			one = one[at+1:]
		}
		if _, address, is := strings.Cut(one, "://"); is {
			one = address
		}
		addresses = append(addresses, one)
	}
	return strings.Join(addresses, ",")
}
