package listener

import (
	"strings"

	"github.com/outboxgen/outboxgen/internal/postgres/queries"
)

// Edit changes one statement of the runtime, to show what a part of it is for.
type Edit struct{ Statement, Old, New string }

// LeaseGate is the advisory lock at which GatedLease waits.
const LeaseGate int64 = 7302

// The parts of the cursor that tests remove, one at a time.
var (
	// WithoutBound ignores the transactions that had their xid when lo was taken, but are not listed in it.
	WithoutBound = Edit{
		Statement: queries.LogRead,
		Old:       "FROM hop AS h\n        WHERE h.xid IS NOT NULL",
		New:       "FROM hop AS h\n        WHERE false",
	}
	// WithoutStragglers reads on from the highest seq alone.
	WithoutStragglers = Edit{Statement: queries.LogRead, Old: "WHERE pg_visible_in_snapshot(x.xid, c.hi)", New: "WHERE false"}
	// WithoutFence lets a lease that waited for the row continue with the snapshot from before the wait, and accepts
	// late copies.
	WithoutFence = Edit{Statement: queries.ListenerTakeLease, Old: "AND (l.lease_no = $9::bigint AND", New: "AND (l.lease_no >= $9::bigint AND"}
	// GatedLease makes a lease wait while another session has the lock LeaseGate. Its snapshot is taken by then, and
	// the row is not locked yet.
	GatedLease = Edit{
		Statement: queries.ListenerTakeLease, Old: retryIsDue,
		New: retryIsDue + " AND (SELECT pg_advisory_xact_lock_shared(7302)::text) IS NOT NULL",
	}
)

const retryIsDue = "AND (l.retry_after IS NULL OR l.retry_after <= statement_timestamp())"

// Mutate makes l, and no other listener, run the edited statements.
func Mutate(l *Listener, edits ...Edit) {
	db := l.db
	for _, e := range edits {
		text := db.Text(e.Statement)
		if strings.Count(text, e.Old) != 1 {
			panic("statement does not have exactly once: " + e.Old)
		}
		db = db.Instead(e.Statement, strings.ReplaceAll(text, e.Old, e.New))
	}
	l.db = db
}
