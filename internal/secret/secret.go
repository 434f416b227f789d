// Package secret keeps passwords out of messages.
package secret

import (
	"errors"
	"regexp"
	"strconv"
	"strings"
)

// Masked stands in messages where a secret was.
const Masked = "xxxxx"

var (
	// address is all of an URL up to what cannot be part of one, quoted or not. A password may hold anything else.
	address = regexp.MustCompile(`([A-Za-z][A-Za-z0-9+.-]*://)([^\s"'<>` + "`" + `]*)`)
	// setting is a password of a key=value string, in quotes or not.
	setting = regexp.MustCompile(`(?i)\b((?:ssl)?password\s*=\s*)('(?:[^'\\]|\\.)*'?|[^\s'"]+)`)
)

// Mask returns text with the passwords taken out that stand in URLs and in key=value connection strings. In an URL that
// is everything between scheme and host but for the user's name; the host starts behind the last @, so that a password
// with an unescaped /, ? or # is masked too.
func Mask(text string) string {
	return setting.ReplaceAllString(address.ReplaceAllStringFunc(text, maskURL), "${1}"+Masked)
}

// maskURL masks an URL.
func maskURL(text string) string {
	scheme, rest, _ := strings.Cut(text, "://")
	at := strings.LastIndexByte(rest, '@')
	if at < 0 {
		return text
	}
	user, _, secret := strings.Cut(rest[:at], ":")
	if !secret || strings.ContainsAny(user, "/?#@") {
		user = ""
	}
	if user != "" {
		user += ":"
	}
	return scheme + "://" + user + Masked + rest[at:]
}

// MaskIn returns text with the connection string whole, which may hold spaces and quotes, taken out of it: an URL without
// its password, a key=value string with password in it altogether.
func MaskIn(text, whole string) string {
	masked := whole
	switch {
	case strings.Contains(whole, "://"):
		masked = maskURL(whole)
	case setting.MatchString(whole):
		masked = Masked
	}
	if masked == whole {
		return text
	}
	text = strings.ReplaceAll(text, whole, masked)
	quoted := strconv.Quote(whole)
	return strings.ReplaceAll(text, quoted[1:len(quoted)-1], masked)
}

// ErrAmbiguous says that an URL may be read in two ways, one of which takes a part of the password for the host, the
// port or a path.
var ErrAmbiguous = errors.New("the URL may be read in two ways: it has one @, in front of the host; elsewhere write %40 for @, and in a user or password %2F for /, %3F for ?, %23 for # and %25 for %")

// CheckURL returns ErrAmbiguous if text is an URL whose user or password likely holds a character that ends them: parsers
// differ in what they make of it. What is not an URL is fine.
func CheckURL(text string) error {
	_, rest, ok := strings.Cut(text, "://")
	if !ok {
		return nil
	}
	at := strings.IndexByte(rest, '@')
	if end := strings.IndexAny(rest, "/?#"); at >= 0 && (end >= 0 && end < at || strings.Contains(rest[at+1:], "@")) {
		return ErrAmbiguous
	}
	return nil
}
