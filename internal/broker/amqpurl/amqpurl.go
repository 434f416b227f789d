// Package amqpurl reads the lists of server addresses that the modules for RabbitMQ take.
package amqpurl

import (
	"errors"
	"net/url"
	"strings"
)

// Check returns what is wrong with a list of servers. The client's own error would quote a password.
func Check(list string) error {
	if list == "" {
		return errors.New("is empty")
	}
	for _, one := range Servers(list) {
		u, err := url.Parse(one)
		switch {
		// With an unescaped slash in a password, the part before it would be the host.
		case err != nil || u.Hostname() == "" || strings.Contains(u.Path, "@") || strings.ContainsAny(one, " \t\r\n"):
			return errors.New("is not a list of URLs: percent-encode special characters in a user or password, and separate " +
				"servers with commas")
		case u.Scheme != "amqp" && u.Scheme != "amqps":
			return errors.New("has a server without amqp:// or amqps://")
		case u.Query().Get("heartbeat") != "":
			return errors.New("has a heartbeat: remove it, because a lost connection is noticed by one of its own")
		}
	}
	return nil
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
func WithoutCredentials(list string) string {
	if Check(list) != nil {
		return "[masked]"
	}
	var addresses []string
	for _, one := range Servers(list) {
		u, err := url.Parse(one)
		if err != nil {
			return "[masked]"
		}
		addresses = append(addresses, u.Host)
	}
	return strings.Join(addresses, ",")
}
