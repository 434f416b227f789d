package outbox

import (
	"fmt"

	"github.com/outboxgen/outboxgen/internal/dbschema"
)

// bell is the doorbell of a namespace, or of all log topics of a schema: the advisory lock that a sleeping process holds,
// and the channel that an enqueuing transaction notifies when it finds the lock held.
type bell struct {
	key     int64
	channel string
}

func bellOf(db *dbschema.Schema, namespace string) bell {
	key := db.AdvisoryKey(namespace)
	return bell{key: key, channel: fmt.Sprintf("outboxgen_%016x", uint64(key))}
}

// logBell is the doorbell of all log topics of a schema: a listener may read topics of any namespace, whose names hold no
// space.
func logBell(db *dbschema.Schema) bell { return bellOf(db, "log topics") }
