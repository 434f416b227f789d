package inbox

import (
	"errors"
	"fmt"

	"github.com/outboxgen/outboxgen/internal/dbschema"
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
	ErrSerialization = dbschema.ErrSerialization
	// ErrNotMigrated: the schema, or a table of the inbox, does not exist.
	ErrNotMigrated = dbschema.ErrNotMigrated
)

var errZeroID = fmt.Errorf("id is the zero UUID: %w", ErrInvalidEvent)

func wrap(what string, err error) error { return dbschema.Wrap(what, err) }
