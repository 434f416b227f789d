package inbox

import (
	"errors"
	"fmt"

	"github.com/outboxgen/outboxgen/internal/postgres/schemadb"
)

// The errors to test for with errors.Is. None of them carries a payload.
var (
	// ErrInvalidEvent: an event has no id or, for Apply, no valid entity or version. Trying again cannot help. It is found
	// before anything is sent, so the transaction stays usable.
	ErrInvalidEvent = errors.New("invalid event")
	// ErrStale: the version of an event is not above the last one of its entity, and Config.Stale is Error. Roll the
	// transaction back.
	ErrStale = errors.New("stale event")
	// ErrSerialization: PostgreSQL refused a statement with 40001 because the caller's transaction runs at REPEATABLE
	// READ or SERIALIZABLE. The transaction is aborted: roll it back and run it again.
	ErrSerialization = schemadb.ErrSerialization
	// ErrNotMigrated: the schema does not exist, or a table or column of the inbox does not. The tables are older than
	// this module: run `outboxgen migrate up`.
	ErrNotMigrated = schemadb.ErrNotMigrated
)

var errZeroID = fmt.Errorf("id is the zero UUID: %w", ErrInvalidEvent)
