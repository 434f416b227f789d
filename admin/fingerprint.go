package admin

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// fingerprintLength is how much of an error, with its placeholders, distinguishes it from others.
const fingerprintLength = 500

// groupID identifies the dead letters of a topic and listener that failed with errors of the same fingerprint.
func groupID(namespace, topic, listener, text string) string {
	return groupIDOf(groupKey(namespace, topic, listener, text))
}

// groupKey is what the dead letters of a group have in common. It is longer than the id, and takes less time.
func groupKey(namespace, topic, listener, text string) string {
	return namespace + "/" + topic + "\x00" + listener + "\x00" + fingerprint(text)
}

func groupIDOf(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:6])
}

// fingerprint returns the text of an error without what differs from event to event: quoted values, UUIDs and other
// ids, hex strings, times, addresses and numbers become placeholders. It is computed here and not in SQL, where a chain
// of regular expressions takes several seconds for 50,000 errors.
func fingerprint(text string) string {
	var b strings.Builder
	b.Grow(min(len(text), fingerprintLength))
	for i := 0; i < len(text) && b.Len() < fingerprintLength; {
		c := text[i]
		rest := text[i:]
		begins := i == 0 || !isWord(text[i-1])
		if n, placeholder := variable(rest, begins); n > 0 {
			b.WriteString(placeholder)
			i += n
			continue
		}
		i++
		switch {
		case c > ' ':
			b.WriteByte(c)
		case b.Len() > 0 && text[i-2] > ' ':
			b.WriteByte(' ')
		}
	}
	return strings.TrimSpace(b.String())
}

// variable returns the length of what text begins with and the placeholder for it, or 0. begins says whether a word may
// begin here.
func variable(text string, begins bool) (int, string) {
	c := text[0]
	if c == '"' || c == '`' || c == '\'' && begins {
		if n := quotedLength(text); n > 0 {
			return n, "<value>"
		}
	}
	if begins && (isWord(c) || c == ':') {
		if n := uuidLength(text); n > 0 {
			return n, "<id>"
		}
		if n := timeLength(text); n > 0 {
			return n, "<time>"
		}
		if n := addressLength(text); n > 0 {
			return n, "<address>"
		}
		if n := idLength(text); n > 0 {
			return n, "<id>"
		}
	}
	if n := span(text, isDigit); n > 0 {
		if n+1 < len(text) && text[n] == '.' && isDigit(text[n+1]) {
			n += 1 + span(text[n+1:], isDigit)
		}
		return n, "<n>"
	}
	return 0, ""
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }
func isHex(c byte) bool   { return isDigit(c) || c|0x20 >= 'a' && c|0x20 <= 'f' }
func isWord(c byte) bool {
	return isDigit(c) || c|0x20 >= 'a' && c|0x20 <= 'z' || c == '_' || c >= 0x80
}

// span is how many bytes at the start of text are of a kind.
func span(text string, is func(byte) bool) int {
	for i := range len(text) {
		if !is(text[i]) {
			return i
		}
	}
	return len(text)
}

// ends reports whether no word continues after the first n bytes of text.
func ends(text string, n int) bool { return n == len(text) || !isWord(text[n]) }

// quotedLength is the length of the quoted value that text begins with. A quote that is not closed quotes nothing, and
// neither does an apostrophe.
func quotedLength(text string) int {
	for i := 1; i < len(text); i++ {
		switch {
		case text[i] == '\\' && text[0] == '"':
			i++
		case text[i] == text[0] && (text[0] != '\'' || ends(text, i+1)):
			return i + 1
		}
	}
	return 0
}

// like returns the length of pattern if text begins with it: 0 stands for a digit, x for a hex digit, anything else for
// itself.
func like(text, pattern string) int {
	if len(text) < len(pattern) {
		return 0
	}
	for i := range len(pattern) {
		switch c := text[i]; pattern[i] {
		case '0':
			if !isDigit(c) {
				return 0
			}
		case 'x':
			if !isHex(c) {
				return 0
			}
		default:
			if c != pattern[i] {
				return 0
			}
		}
	}
	return len(pattern)
}

func uuidLength(text string) int {
	if n := like(text, "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"); n > 0 && ends(text, n) {
		return n
	}
	return 0
}

// timeLength is the length of a date, a time of day, or both, with a zone.
func timeLength(text string) int {
	n := max(like(text, "0000-00-00"), like(text, "0000/00/00"))
	if n > 0 && n < len(text) && (text[n] == 'T' || text[n] == ' ') {
		if more := clockLength(text[n+1:]); more > 0 {
			return n + 1 + more
		}
	}
	if n == 0 {
		n = clockLength(text)
	}
	if n > 0 && ends(text, n) {
		return n
	}
	return 0
}

// clockLength is the length of a time of day with seconds, and its zone.
func clockLength(text string) int {
	n := like(text, "00:00:00")
	if n == 0 {
		return 0
	}
	if n+1 < len(text) && text[n] == '.' {
		n += 1 + span(text[n+1:], isDigit)
	}
	for _, zone := range []string{"Z", "+00:00", "-00:00", "+0000", "-0000", "+00", "-00"} {
		if more := like(text[n:], zone); more > 0 {
			return n + more
		}
	}
	return n
}

// addressLength is the length of an IP address with its port.
func addressLength(text string) int {
	n := 0
	for part := range 4 {
		digits := span(text[n:], isDigit)
		if digits == 0 || digits > 3 {
			n = 0
			break
		}
		n += digits
		if part < 3 {
			if n >= len(text) || text[n] != '.' {
				n = 0
				break
			}
			n++
		}
	}
	if n == 0 {
		if text[0] == ':' && like(text, "::") == 0 {
			return 0
		}
		n = len(strings.TrimSuffix(text[:span(text, func(c byte) bool { return isHex(c) || c == ':' })], ":"))
		if strings.Count(text[:n], ":") < 2 || !strings.ContainsAny(text[:n], "0123456789") || !ends(text, n) {
			return 0
		}
		return n
	}
	if n+1 < len(text) && text[n] == ':' && isDigit(text[n+1]) {
		n += 1 + span(text[n+1:], isDigit)
	}
	if !ends(text, n) {
		return 0
	}
	return n
}

// The shortest words that are taken for ids: a word of hex digits, and another one with letters and digits.
const (
	shortestHex = 8
	shortestID  = 16
)

// idLength is the length of a word that is hardly a word of a language.
func idLength(text string) int {
	n := span(text, isWord)
	word := text[:n]
	digits := 0
	for i := range n {
		if isDigit(word[i]) {
			digits++
		}
	}
	hexDigits := span(word, isHex)
	switch {
	case strings.HasPrefix(word, "0x") && n > 2 && 2+span(word[2:], isHex) == n:
		return n
	case digits == n:
		return 0 // a number
	case digits > 0 && hexDigits == n && n >= shortestHex, digits > 1 && n >= shortestID:
		return n
	}
	return 0
}
