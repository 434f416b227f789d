package schemadb

import (
	"errors"
	"fmt"
)

// Packages outbox and inbox export these errors under the same names.
var (
	ErrSerialization = errors.New("serialization failure")
	ErrNotMigrated   = errors.New("database is not migrated")
)

// Wrap turns an error of PostgreSQL into one of ours. what names the operation that failed. The error may come from any
// driver: pgx and lib/pq have SQLState. If the tables or the rights are missing, it names the command for those of s,
// because the command's own default may be another schema.
func (s *Schema) Wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	var pg interface{ SQLState() string }
	if errors.As(err, &pg) {
		switch pg.SQLState() {
		case "40001":
			return fmt.Errorf("%s: %w: %w", what, ErrSerialization, err)
		// A table, a schema, a column or a function does not exist: the tables are older than this program, or there are
		// none.
		case "42P01", "3F000", "42703", "42883":
			return fmt.Errorf("%s: %w (run `outboxgen migrate up --schema %s`): %w", what, ErrNotMigrated, s.name, err)
		case "55P03": // lock_not_available
			return fmt.Errorf("%s: another session holds a lock for too long: pg_locks shows which (pid, locktype, granted): %w",
				what, err)
		case "42501": // insufficient_privilege
			return fmt.Errorf(
				"%s: the role lacks a privilege (`outboxgen migrate get --roles --schema %s` prints the grants): %w", what,
				s.name, err)
		}
	}
	return fmt.Errorf("%s: %w", what, err)
}
