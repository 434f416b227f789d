// Package wireheader is the one rule for the headers of an event: every publisher can carry what it allows.
package wireheader

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// MaxName is how many bytes a name may have: AMQP counts them in one byte.
const MaxName = 255

// Errors of Check.
var (
	ErrName  = errors.New("use a name of 1 to 255 ASCII letters, digits and !#$%&'*+-.^_`|~")
	ErrValue = errors.New("use a value of UTF-8 text without control characters; a tab is allowed")
)

// Check returns why a header cannot be carried by every publisher, or nil. A name is a token of HTTP, which NATS, AMQP,
// Kafka and Redis can carry too.
func Check(name, value string) error {
	switch {
	case len(name) > MaxName || !IsName(name):
		return ErrName
	case !utf8.ValidString(value) || !IsValue(value):
		return ErrValue
	}
	return nil
}

// IsName reports whether s can be the name of a header of HTTP (RFC 9110, section 5.6.2).
func IsName(s string) bool {
	for _, c := range []byte(s) {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !letter && strings.IndexByte("!#$%&'*+-.^_`|~", c) < 0 {
			return false
		}
	}
	return s != ""
}

// IsValue reports whether s can be the value of a header of HTTP (RFC 9110, section 5.5).
func IsValue(s string) bool {
	for _, c := range []byte(s) {
		if c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}

// PercentEncoded writes the value of an attribute as a header. The bindings of CloudEvents to HTTP and to NATS say the
// same (https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/bindings/http-protocol-binding.md, 3.1.3.2).
func PercentEncoded(value string) string {
	plain := 0 // the length of what stays as it is
	for plain < len(value) && isPlain(value[plain]) {
		plain++
	}
	if plain == len(value) {
		return value
	}
	var b strings.Builder
	b.WriteString(value[:plain])
	for _, c := range []byte(value[plain:]) {
		if isPlain(c) {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

// isPlain reports whether PercentEncoded leaves c as it is.
func isPlain(c byte) bool { return c > ' ' && c < 0x7f && c != '"' && c != '%' }
