package model

import (
	"go/token"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/outboxgen/outboxgen/generator/diag"
	"github.com/outboxgen/outboxgen/generator/spec"
)

// maxName is the longest name in bytes.
const maxName = 41

// namePattern is what ValidName accepts.
var (
	namePattern   = regexp.MustCompile(`^[a-z][a-z0-9_]{0,40}$`)
	goNamePattern = regexp.MustCompile(`^[A-Z][A-Za-z0-9]{0,63}$`)
)

// ValidName reports whether a name of the YAML matches ^[a-z][a-z0-9_]{0,40}$. It is faster than the pattern.
func ValidName(name string) bool {
	if name == "" || len(name) > maxName || name[0] < 'a' || name[0] > 'z' {
		return false
	}
	for i := range len(name) {
		if c := name[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '_' {
			return false
		}
	}
	return true
}

// checkName reports a name of the YAML that does not match namePattern. It returns whether the name is valid.
func (b *builder) checkName(name spec.Value[string], what string) bool {
	if ValidName(name.V) {
		return true
	}
	hint := ""
	if better := Snake(name.V); better != name.V && ValidName(better) && !reserved(better, what) {
		hint = diag.Hint(better)
	}
	b.Errorf(name.Pos, diag.BadName,
		"%q is not a valid %s name: use a lower-case letter, then up to 40 of a-z, 0-9 or _%s", name.V, what, hint)
	return false
}

// reserved reports whether a name that matches namePattern is refused nevertheless.
func reserved(name, what string) bool {
	switch what {
	case "package":
		return token.IsKeyword(name) || strings.HasSuffix(name, "_test") || name == "documentation"
	case "schema":
		return sqlReserved[name] || strings.HasPrefix(name, "pg_") || name == "information_schema"
	}
	return false
}

// checkPackage reports a package name that the Go toolchain refuses or ignores.
func (b *builder) checkPackage(name spec.Value[string]) {
	switch {
	case !name.Set() || !b.checkName(name, "package"):
	case token.IsKeyword(name.V):
		b.Errorf(name.Pos, diag.BadName, "package: %q is a Go keyword: choose another name", name.V)
	case strings.HasSuffix(name.V, "_test"):
		b.Errorf(name.Pos, diag.BadName,
			"package: %q ends in _test, which Go reserves for test files: choose another name", name.V)
	case name.V == "documentation":
		b.Errorf(name.Pos, diag.BadName, "package: Go ignores the files of a package named %q: choose another name", name.V)
	}
}

// checkSchema reports a schema name that PostgreSQL reserves.
func (b *builder) checkSchema(name spec.Value[string]) {
	switch {
	case !name.Set() || !b.checkName(name, "schema"):
	case sqlReserved[name.V]:
		b.Errorf(name.Pos, diag.BadName, "schema: %q is a reserved word of SQL: choose another name", name.V)
	case strings.HasPrefix(name.V, "pg_"), name.V == "information_schema":
		b.Errorf(name.Pos, diag.BadName, "schema: %q is reserved for PostgreSQL: choose another name", name.V)
	}
}

// goName returns the Go name of a checked YAML name, or the override when there is a valid one.
func (b *builder) goName(name, override spec.Value[string]) string {
	if !override.Set() {
		return camel(name.V)
	}
	if !goNamePattern.MatchString(override.V) {
		hint := ""
		if better := camel(Snake(override.V)); goNamePattern.MatchString(better) {
			hint = diag.Hint(better)
		}
		b.Errorf(override.Pos, diag.BadGoName,
			"go: %q is not a valid exported Go name: use an upper-case letter, then up to 63 letters and digits%s",
			override.V, hint)
		return camel(name.V)
	}
	return override.V
}

// camel returns the exported Go name of a YAML name or enum value: turn_id becomes TurnID.
func camel(name string) string {
	var out strings.Builder
	for part := range strings.FieldsFuncSeq(name, func(r rune) bool { return r == '_' || r == '-' || r == '.' }) {
		if len(part) > 1 && part == strings.ToUpper(part) {
			part = strings.ToLower(part)
		}
		switch {
		case initialisms[part]:
			out.WriteString(strings.ToUpper(part))
		case strings.HasSuffix(part, "s") && initialisms[part[:len(part)-1]]:
			out.WriteString(strings.ToUpper(part[:len(part)-1]) + "s")
		default:
			out.WriteString(strings.ToUpper(part[:1]) + part[1:])
		}
	}
	return out.String()
}

// Snake returns a name in lower case with underscores between its words: TurnID becomes turn_id. It
// splits before an upper-case letter that follows a lower-case letter or digit, or that starts a word
// after a run of them.
func Snake(name string) string {
	var out strings.Builder
	runes := []rune(name)
	for i, r := range runes {
		if r == '-' || r == ' ' || r == '.' || r == '_' {
			out.WriteByte('_')
			continue
		}
		if unicode.IsUpper(r) && i > 0 && runes[i-1] != '_' {
			before := runes[i-1]
			next := i+1 < len(runes) && unicode.IsLower(runes[i+1])
			plural := next && runes[i+1] == 's' && (i+2 == len(runes) || unicode.IsUpper(runes[i+2]))
			if unicode.IsLower(before) || unicode.IsDigit(before) || unicode.IsUpper(before) && next && !plural {
				out.WriteByte('_')
			}
		}
		out.WriteRune(unicode.ToLower(r))
	}
	return out.String()
}

// PlainText returns the user's text as one line of printable words, so that it can stand in a Go comment. Line breaks,
// control characters and invisible characters, which may reorder what a reviewer sees, become spaces.
func PlainText(text string) string {
	return strings.Join(strings.FieldsFunc(text, func(r rune) bool {
		return r == ' ' || r == utf8.RuneError || !unicode.IsPrint(r)
	}), " ")
}

func setOf(words string) map[string]bool {
	set := make(map[string]bool)
	for word := range strings.FieldsSeq(words) {
		set[word] = true
	}
	return set
}

// initialisms are written in one case in Go. Source: the list of golint, which staticcheck ST1003 continues,
// without those that read as words.
var initialisms = setOf(`acl amqp api ascii cpu css db dns eof gid guid html http https id ip json qps ram
	rpc rtp sip sla smtp sql ssh tcp tls ttl udp ui uid uri url utf8 uuid vm xml xmpp xsrf xss`)

// sqlReserved are the words that PostgreSQL 18 does not take as a schema name without quotes: appendix C,
// "reserved" and "reserved (can be function or type)".
var sqlReserved = setOf(`all analyse analyze and any array as asc asymmetric authorization binary both case
	cast check collate collation column concurrently constraint create cross current_catalog current_date
	current_role current_schema current_time current_timestamp current_user default deferrable desc
	distinct do else end except false fetch for foreign freeze from full grant group having ilike in
	initially inner intersect into is isnull join lateral leading left like limit localtime localtimestamp
	natural not notnull null offset on only or order outer overlaps placing primary references returning
	right select session_user similar some symmetric system_user table tablesample then to trailing true
	union unique user using variadic verbose when where window with`)
