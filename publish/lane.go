package publish

import "context"

// Lane is where the events of a call of Publisher.Publish come from: one shard of a listener. At most one process may publish
// for a lane at a time: the holder of the shard's lease. A process that has lost the lease without noticing it may still try.
// A publisher whose broker can refuse an earlier producer uses the lane to name its producer. It must then call Held between
// taking over the producer and sending the first event: only the holder may go on.
type Lane struct {
	// Name is unique in a database: schema, listener and shard, for example "outbox/companion/0".
	Name string
	// Held asks the database. It returns nil if this process still has the lease, and otherwise an error: outbox.ErrLeaseLost,
	// or that of the database.
	Held func(ctx context.Context) error
}

type laneKey struct{}

// ContextWithLane returns a context for calls of Publish for l. A listener uses it.
func ContextWithLane(ctx context.Context, l Lane) context.Context {
	return context.WithValue(ctx, laneKey{}, l)
}

// LaneOf returns the lane of a call of Publish. Events of queue topics have none, because each has a lease of its own.
func LaneOf(ctx context.Context) (l Lane, ok bool) {
	l, ok = ctx.Value(laneKey{}).(Lane)
	return l, ok
}
