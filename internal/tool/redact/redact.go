// Package redact keeps passwords out of messages.
package redact

import (
	"errors"
	"net/url"
	"regexp"
	"strconv"
	"strings"
)

// Masked replaces a secret in a message.
const Masked = "xxxxx"

var (
	// address matches a URL up to the first character that cannot be part of one. A password may contain any other
	// character.
	address = regexp.MustCompile(`([A-Za-z][A-Za-z0-9+.-]*://)([^\s"'<>` + "`" + `]*)`)
	// setting matches a password in a key=value string, quoted or not.
	setting = regexp.MustCompile(`(?i)\b((?:ssl)?password\s*=\s*)('(?:[^'\\]|\\.)*'?|(?:\\.|[^\s'"])+)`)
)

// Mask returns text with the passwords in URLs and in key=value connection strings masked. In a URL it masks everything
// between scheme and host except the user's name. The host starts after the last @, so a password with an unescaped /,
// ? or # is masked, too.
func Mask(text string) string {
	return setting.ReplaceAllString(address.ReplaceAllStringFunc(text, maskURL), "${1}"+Masked)
}

// maskURL masks the password in a URL.
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

// MaskIn returns text with the connection string whole masked in it. whole may contain spaces and quotes. If it is a
// URL, MaskIn masks its password; if it is a key=value string with a password, MaskIn masks all of it.
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

// MaskQuoted returns text with password masked where it stands in quotes, as it is or percent-encoded. Elsewhere the
// same letters are words of the message: the password of many a database is "postgres" or "password".
func MaskQuoted(text, password string) string {
	if password == "" {
		return text
	}
	for _, form := range []string{
		password, strings.Trim(strconv.Quote(password), `"`), url.QueryEscape(password), url.PathEscape(password),
	} {
		for _, quote := range []string{`"`, "'", "`"} {
			text = strings.ReplaceAll(text, quote+form+quote, quote+Masked+quote)
		}
	}
	return text
}

// ErrAmbiguous says that a URL can be read in two ways, one of which takes a part of the password for the host, the
// port or a path.
var ErrAmbiguous = errors.New("the URL can be read in two ways: use one @, before the host; elsewhere write %40 for " +
	"@, and in a user or password write %2F for /, %3F for ?, %23 for # and %25 for %")

// CheckURL returns ErrAmbiguous if text is a URL whose user or password probably contains a character that ends it,
// because parsers read such a URL differently. It returns nil if text is not a URL.
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
