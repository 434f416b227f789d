package redis

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	goredis "github.com/redis/go-redis/v9"
)

// trimmed knows how many entries were removed from a stream before they were delivered.
type trimmed struct {
	ahead int64 // by how much Redis counts too few entries as read: it does not count those that were removed before
}

// note returns how many entries were removed before they were delivered, since the last call. Redis counts the entries
// that were added to a stream, those that it has, and those that a group has read, since version 7. What is removed and
// not read is at least what is removed less what is read.
func (t *trimmed) note(stream *goredis.XInfoStream, group goredis.XInfoGroup) int64 {
	if stream == nil || stream.EntriesAdded == 0 {
		return 0 // an older Redis, or an empty stream
	}
	missing := stream.EntriesAdded - stream.Length - group.EntriesRead - t.ahead
	last, generated, first := idOf(group.LastDeliveredID), idOf(stream.LastGeneratedID), idOf(stream.FirstEntry.ID)
	switch {
	case group.EntriesRead == 0: // the group is new, or was created at another entry than the first
		t.ahead = 0
		return 0
	case !last.before(generated): // everything was read
		t.ahead = stream.EntriesAdded - group.EntriesRead
		return 0
	case missing <= 0:
		return 0
	}
	t.ahead += missing
	if stream.Length > 0 && !last.before(first) {
		return 0 // that was before: the group has the first entry that there is
	}
	return missing
}

// reachedEnd is called when a read after the same look returned all entries that there are: read of them. What Redis
// does not count as read from then on is a loss that was noted, or one from before this process.
func (t *trimmed) reachedEnd(stream *goredis.XInfoStream, group goredis.XInfoGroup, read int) {
	if stream != nil && group.EntriesRead > 0 {
		t.ahead = stream.EntriesAdded - group.EntriesRead - int64(read)
	}
}

// id is that of an entry.
type id struct{ ms, n uint64 }

func (a id) before(b id) bool { return a.ms < b.ms || a.ms == b.ms && a.n < b.n }

func idOf(text string) id {
	ms, n, _ := strings.Cut(text, "-")
	var i id
	i.ms, _ = strconv.ParseUint(ms, 10, 64) // 0 if there is none
	i.n, _ = strconv.ParseUint(n, 10, 64)
	return i
}

// Lag is how far the group is behind in a stream.
type Lag struct {
	Stream string
	// Pending is how many entries of the stream have not been delivered to anybody. It is -1 if Redis does not know it:
	// before version 7, and while entries in the middle of the stream were deleted.
	Pending int64
	// Unacknowledged is how many were delivered and are not acknowledged.
	Unacknowledged int64
}

// Lag asks the server how far the group is behind in each stream, in their order, within Config.StartTimeout. Run need
// not be under way. What is parked in the database is not behind: see Status.
func (r *Receiver) Lag(ctx context.Context) ([]Lag, error) {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.StartTimeout)
	defer cancel()
	client, err := r.cfg.client(askTimeout)
	if err != nil {
		return nil, fmt.Errorf("read lag of group %s: %w", r.cfg.Group, err)
	}
	defer func() { _ = client.Close() }()
	lags := make([]Lag, len(r.cfg.Streams))
	for i, name := range r.cfg.Streams {
		if lags[i], err = r.lag(ctx, client, name); err != nil {
			return nil, fmt.Errorf("read lag of %s/%s at %s: %w", name, r.cfg.Group, r.cfg.servers(), err)
		}
	}
	return lags, nil
}

func (r *Receiver) lag(ctx context.Context, client goredis.UniversalClient, name string) (Lag, error) {
	one, err := node(ctx, client, name)
	if err != nil {
		return Lag{}, unreachable(explain(err))
	}
	groups, err := one.XInfoGroups(ctx, name).Result()
	if err != nil {
		return Lag{}, unreachable(explain(err))
	}
	for _, g := range groups {
		if g.Name == r.cfg.Group {
			return Lag{Stream: name, Pending: g.Lag, Unacknowledged: g.Pending}, nil
		}
	}
	return Lag{}, errNoGroup
}

// unreachable wraps an error that is not an answer.
func unreachable(err error) error {
	_, answered := errors.AsType[goredis.Error](err)
	if answered || errors.Is(err, ErrTLS) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrUnreachable, err)
}
