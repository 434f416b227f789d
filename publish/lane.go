package publish

import "context"

// Lane is where the events of a call of Publisher.Publish come from: one shard of a listener. At most one process may
// publish for a lane at a time: the holder of the shard's lease. A process that has lost the lease without noticing it
// may still try. A publisher whose broker can refuse an earlier producer uses the lane to name its producer. After it
// has taken over the producer, and before it sends the first event, it must do two things, in this order: make the
// broker refuse the producers of the lanes that Earlier names, and call Held. Only the holder may go on.
type Lane struct {
	// Name is unique in a database: schema, listener, shard and number of shards, for example "outbox/companion/0-of-4".
	Name string
	// Earlier asks the database for the names of the lanes that the listener had with other numbers of shards. Events of
	// any key may still be on their way in them. It returns none if the number was never changed, and outbox.ErrLeaseLost
	// if it was changed since this process took the lease. It may be nil, which means none.
	Earlier func(ctx context.Context) ([]string, error)
	// Held asks the database. It returns nil if this process still has the lease, and otherwise an error:
	// outbox.ErrLeaseLost, or that of the database.
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
