// Package bell names the doorbells: what an enqueue rings, and what wakes a machine that sleeps.
package bell

import (
	"fmt"

	"github.com/outboxgen/outboxgen/internal/postgres/schemadb"
)

// Bell is the doorbell of a namespace, or of all log topics of a schema: the advisory lock that a sleeping process
// holds, and the channel that an enqueuing transaction notifies when it finds the lock held.
type Bell struct {
	Key     int64
	Channel string
}

// Of is the doorbell of a namespace.
func Of(db *schemadb.Schema, namespace string) Bell {
	key := db.AdvisoryKey(namespace)
	return Bell{Key: key, Channel: fmt.Sprintf("outboxgen_%016x", uint64(key))}
}

// OfLog is the doorbell of all log topics of a schema, because a listener may read topics of any namespace. Its name
// cannot be that of a namespace, because it contains a space.
func OfLog(db *schemadb.Schema) Bell { return Of(db, "log topics") }
