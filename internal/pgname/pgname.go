// Package pgname is the one place that says which names may be a PostgreSQL schema of the outbox. The
// generator checks the YAML with it, the runtime and package migrate check their configuration.
package pgname

import (
	"fmt"
	"regexp"
	"strings"
)

// Pattern is what every name of the outbox looks like: lower case, at most 41 bytes, nothing that
// PostgreSQL would have to quote.
const Pattern = `^[a-z][a-z0-9_]{0,40}$`

var pattern = regexp.MustCompile(Pattern)

// Check returns nil when schema may hold the tables of an outbox, else an error that says why not.
// Names that PostgreSQL keeps for itself ("pg_...", "information_schema") are refused as well.
func Check(schema string) error {
	switch {
	case !pattern.MatchString(schema):
		return fmt.Errorf("schema name %q: must match %s", shorten(schema), Pattern)
	case Reserved(schema):
		return fmt.Errorf("schema name %q: is a reserved word of SQL", schema)
	case strings.HasPrefix(schema, "pg_") || schema == "information_schema":
		return fmt.Errorf("schema name %q: belongs to PostgreSQL", schema)
	}
	return nil
}

// Reserved reports whether PostgreSQL refuses word, in any case, as a bare name of a schema.
func Reserved(word string) bool {
	return reserved[strings.ToLower(word)]
}

// shorten keeps an error message on one line when a whole document was given as a name.
func shorten(name string) string {
	const limit = 64
	if len(name) <= limit {
		return name
	}
	return strings.ToValidUTF8(name[:limit], "") + "..."
}

// IsName reports whether name matches Pattern: the shape of namespaces and topics too. It is on the path
// of every enqueue and so does without the regular expression.
func IsName(name string) bool {
	if len(name) == 0 || len(name) > 41 || name[0] < 'a' || name[0] > 'z' {
		return false
	}
	for _, c := range []byte(name) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '_' {
			return false
		}
	}
	return true
}
