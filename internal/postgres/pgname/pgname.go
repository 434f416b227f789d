// Package pgname says which names are valid for a PostgreSQL schema of the outbox. The generator checks the
// YAML with it; the runtime and package migrate check their configuration.
package pgname

import (
	"fmt"
	"regexp"
	"strings"
)

// Pattern is the form of every name in the outbox: lower case, at most 41 bytes, and no character that PostgreSQL
// would have to quote.
const Pattern = `^[a-z][a-z0-9_]{0,40}$`

var pattern = regexp.MustCompile(Pattern)

// Check returns nil if schema is a valid name for the schema of an outbox, else an error that says why not. It also
// refuses the names that PostgreSQL reserves ("pg_...", "information_schema").
func Check(schema string) error {
	switch {
	case !pattern.MatchString(schema):
		return fmt.Errorf("schema name %q is not valid: use a lower-case letter, then up to 40 of a-z, 0-9 or _",
			shorten(schema))
	case Reserved(schema):
		return fmt.Errorf("schema name %q is a reserved word of SQL: choose another", schema)
	case strings.HasPrefix(schema, "pg_") || schema == "information_schema":
		return fmt.Errorf("schema name %q belongs to PostgreSQL: choose another", schema)
	}
	return nil
}

// Reserved reports whether PostgreSQL refuses word, in any case, as a bare name of a schema.
func Reserved(word string) bool {
	return reserved[strings.ToLower(word)]
}

// shorten keeps an error message short if a whole document was given as a name.
func shorten(name string) string {
	const limit = 64
	if len(name) <= limit {
		return name
	}
	return strings.ToValidUTF8(name[:limit], "") + "..."
}

// IsName reports whether name matches Pattern, which is also the form of namespaces and topics. Every enqueue calls it,
// so it does not use the regular expression.
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
