package inbox

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
)

// Conditions that callers branch on with errors.Is. None of them ever carries a payload.
var (
	// ErrInvalidEvent: an event has no id, or for Apply no entity or version. No retry will mend it. Found before
	// anything is sent.
	ErrInvalidEvent = errors.New("invalid event")
	// ErrStale: the entity of an event has its version already, or is past it, and the consumer wants that to be an
	// error.
	ErrStale = errors.New("stale event")
	// ErrSerialization: PostgreSQL refused a statement with 40001 because the caller's transaction runs at REPEATABLE
	// READ or SERIALIZABLE. The transaction is aborted: roll it back and run it again.
	ErrSerialization = errors.New("serialization failure")
	// ErrNotMigrated: the schema, or a table of the inbox, does not exist.
	ErrNotMigrated = errors.New("database is not migrated")
)

var errZeroID = fmt.Errorf("id is the zero UUID: %w", ErrInvalidEvent)

// wrap is the one place where an error of PostgreSQL becomes one of ours; what says what was done.
func wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		switch pg.Code {
		case "40001":
			return fmt.Errorf("%s: %w: %w", what, ErrSerialization, err)
		case "42P01", "3F000":
			return fmt.Errorf("%s: %w (run `outboxgen migrate up`): %w", what, ErrNotMigrated, err)
		}
	}
	return fmt.Errorf("%s: %w", what, err)
}
