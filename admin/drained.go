package admin

import (
	"context"
	"fmt"
	"math"
	"strings"

	"github.com/outboxgen/outboxgen/internal/postgres/pgname"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
)

// Drained says what still needs a payload version of a topic: the events that some code has yet to decode.
type Drained struct {
	Namespace, Topic string `json:"-"`
	// Version is the newest that was looked for: events with an older one count too. 0 means every version.
	Version int `json:"version,omitempty"`
	// Due, Scheduled, Retrying and InFlight are the events of a queue topic that are not final. Each is counted once;
	// Retrying are those that wait for another attempt, due or not.
	Due       int64 `json:"due"`
	Scheduled int64 `json:"scheduled"`
	Retrying  int64 `json:"retrying"`
	InFlight  int64 `json:"in_flight"`
	// Parked events wait at a listener, and Dead ones may be replayed, whether a dispatcher or a listener gave them up.
	Parked int64 `json:"parked"`
	Dead   int64 `json:"dead"`
	// Quarantined are stale copies in an inbox of this database whose event is still here. No code reads them again.
	Quarantined int64 `json:"quarantined"`
	// Unread has, by listener, the events of a log topic that the listener has not passed. Listeners that have passed all
	// are not in it.
	Unread map[string]int64 `json:"unread"`
	// Kept are the rows of the log. A new listener that starts at the earliest event, or a rewind, reads those that were
	// passed too. They do not count as needed.
	Kept int64 `json:"kept"`
}

// Is reports whether nothing needs the version any more.
func (d Drained) Is() bool {
	return d.Due+d.Scheduled+d.Retrying+d.InFlight+d.Parked+d.Dead+d.Quarantined == 0 && len(d.Unread) == 0
}

// Drained says whether events of topic, "namespace/name", still need a payload version up to version; 0 means any.
// Upcasters and old payload types of the version can be removed when nothing does and no process enqueues it any more.
// Its counts are exact and of one moment. It reads all of queue, parked and dead letters, and of the log what belongs
// to the topic.
func (a *Admin) Drained(ctx context.Context, topic string, version int) (Drained, error) {
	namespace, name, _ := strings.Cut(topic, "/")
	if !pgname.IsName(namespace) || !pgname.IsName(name) {
		return Drained{}, fmt.Errorf("drained: %q is not a valid topic: use namespace/name", topic)
	}
	if version < 0 || version > math.MaxInt32 {
		return Drained{}, fmt.Errorf("drained: version %d is not between 0 and %d", version, math.MaxInt32)
	}
	d := Drained{Namespace: namespace, Topic: name, Version: version, Unread: make(map[string]int64)}
	newest := int32(version)
	if version == 0 {
		newest = math.MaxInt32
	}
	err := a.db.InSnapshot(ctx, a.pool, func(q *queries.Queries) error {
		if err := q.ScanWhole(ctx); err != nil {
			return err
		}
		queue, err := q.DrainedQueue(ctx, queries.DrainedQueueParams{Namespace: namespace, Topic: name, Newest: newest})
		if err != nil {
			return err
		}
		for _, r := range queue {
			*[...]*int64{1: &d.InFlight, 2: &d.Scheduled, 3: &d.Retrying, 4: &d.Due}[r.State] = r.Count
		}
		rest, err := q.DrainedRest(ctx, queries.DrainedRestParams{Namespace: namespace, Topic: name, Newest: newest})
		if err != nil {
			return err
		}
		d.Dead, d.Parked, d.Quarantined, d.Kept = rest.Dead, rest.Parked, rest.Quarantined, rest.Kept
		if err := q.SessionGuard(ctx); err != nil {
			return err
		}
		unread, err := q.DrainedLog(ctx, queries.DrainedLogParams{Namespace: namespace, Topic: name, Newest: newest})
		for _, r := range unread {
			d.Unread[r.Listener] = r.Count
		}
		return err
	})
	return d, a.db.Wrap("drained", err)
}
