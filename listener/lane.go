package listener

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/outboxgen/outboxgen/internal/postgres/queries"
	"github.com/outboxgen/outboxgen/listener/internal/core"
	"github.com/outboxgen/outboxgen/outbox"
)

// laneName names the lane of a shard. It has the number of shards, so that the holders of a new number can fence the
// producers of an old one without fencing each other.
func (l *Listener) laneName(shard, shards int) string {
	return fmt.Sprintf("%s/%s/%d-of-%d", l.db.Name(), l.spec.Name, shard, shards)
}

// earlierLanes names the lanes of the numbers of shards that the listener had before that of lease. They are read after
// the lease was taken, so none is missing.
func (s *shard) earlierLanes(ctx context.Context, lease *core.Lease) (names []string, err error) {
	ctx, cancel := s.l.limited(ctx)
	defer cancel()
	past, err := s.l.db.Each(s.l.pool).ListenerPastShards(ctx, queries.ListenerPastShardsParams{
		Listener: s.l.spec.Name, Shard: int32(s.number), Shards: int32(lease.Shards),
	})
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, outbox.ErrLeaseLost
	case err != nil:
		return nil, s.wrap(": read its earlier numbers of shards", err)
	}
	for _, shards := range past {
		if int(shards) == lease.Shards { // the same names as now: taking over the lane has fenced its producer
			continue
		}
		for shard := range int(shards) {
			names = append(names, s.l.laneName(shard, int(shards)))
		}
	}
	return names, nil
}

// held returns nil if this process still has lease, which it renews.
func (s *shard) held(ctx context.Context, lease *core.Lease) error {
	ctx, cancel := s.l.limited(ctx)
	defer cancel()
	n, err := s.extend(ctx, lease)
	switch {
	case err != nil:
		return s.wrap(": ask for the lease", err)
	case n == 0:
		return outbox.ErrLeaseLost
	}
	return nil
}
