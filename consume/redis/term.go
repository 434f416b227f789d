package redis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/consume/receive"
	"github.com/outboxgen/outboxgen/internal/call/backoff"
	"github.com/outboxgen/outboxgen/internal/call/errtext"
	"github.com/outboxgen/outboxgen/internal/call/usercode"
	"github.com/outboxgen/outboxgen/internal/postgres/advisory"
)

// errLockLost is the cause when the connection that holds the lock is gone.
var errLockLost = errors.New("the lock was lost, with its connection to the database")

// lockValid is how long a lock counts as held after the database has answered last.
const lockValid = 10 * time.Second

// consumerName is the name of the consumer in the group. All processes have the same, because one at a time reads.
const consumerName = "outboxgen"

// term reads the stream for as long as this process has the lock and nothing is wrong.
func (s *stream) term(outer context.Context) error {
	if err := s.prepare(outer); err != nil {
		return err
	}
	l, err := s.lock(outer)
	if err != nil {
		return err
	}
	defer l.Release()
	ctx, stop := context.WithCancelCause(outer)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer stop(nil)
	watching.Go(func() {
		if !l.Watch(ctx) {
			stop(errLockLost)
		}
	})
	err = s.read(ctx, l)
	if errors.Is(context.Cause(ctx), errLockLost) {
		return errLockLost
	}
	return err
}

// prepare finds the group, or creates it, and asks for each right that is needed later.
func (s *stream) prepare(ctx context.Context) error {
	client, err := node(ctx, s.reads, s.name)
	if err != nil {
		return explain(err)
	}
	groups, err := client.XInfoGroups(ctx, s.name).Result()
	if err = explain(err); err != nil && !errors.Is(err, errNoGroup) {
		return err
	}
	if !slices.ContainsFunc(groups, func(g goredis.XInfoGroup) bool { return g.Name == s.r.cfg.Group }) {
		if err := s.create(ctx, client); err != nil {
			return err
		}
	}
	s.known = true
	const beyond = "18446744073709551615-18446744073709551615"
	for _, ask := range [...]func() error{
		func() error { return client.XPending(ctx, s.name, s.r.cfg.Group).Err() },
		func() error { return client.XRangeN(ctx, s.name, beyond, beyond, 1).Err() },
		func() error { return client.XAck(ctx, s.name, s.r.cfg.Group, "0-0").Err() }, // does nothing
		func() error {
			return client.XRead(ctx, &goredis.XReadArgs{Streams: []string{s.name, beyond}, Count: 1, Block: -1}).Err()
		},
	} {
		if err := ask(); err != nil && !errors.Is(err, goredis.Nil) {
			return explain(err)
		}
	}
	return nil
}

// create creates the group. A group that was there before is created from the beginning, because its position is gone:
// the inbox removes what was applied.
func (s *stream) create(ctx context.Context, client goredis.UniversalClient) error {
	start := "0"
	if s.r.cfg.FromEnd && !s.known {
		start = "$"
	}
	create := client.XGroupCreate
	if s.r.cfg.CreateStreams || s.known {
		create = client.XGroupCreateMkStream
	}
	if err := create(ctx, s.name, s.r.cfg.Group, start).Err(); err != nil && !strings.HasPrefix(err.Error(), "BUSYGROUP") {
		return explain(err)
	}
	s.trimmed = trimmed{}
	if s.known {
		s.log.Warn("the consumer group was gone: it is created again, and the stream is read from its beginning")
	} else {
		s.log.Info("the consumer group is created", "from", start)
	}
	return nil
}

// lock waits until this process has the lock of the stream.
func (s *stream) lock(ctx context.Context) (*advisory.Lock, error) {
	name := fmt.Sprintf("outboxgen consume/redis %s %d/%s/%s", s.r.receiver.Group(), s.r.cfg.database(),
		s.r.cfg.Group, s.name)
	for waits := false; ; {
		l, err := advisory.Try(ctx, s.r.cfg.LockPool, name, lockValid)
		switch {
		case l != nil:
			if waits {
				s.log.Info("this process reads the stream now")
				s.trouble.since = time.Time{} // there was none while it waited
			}
			return l, nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case err != nil && !waits:
			s.log.Warn("the lock of the stream cannot be taken: the database does not answer", "error", err)
			waits = true
		case !waits:
			s.log.Info("another process reads the stream: this one waits to take over")
			waits = true
		}
		backoff.Sleep(ctx, 500*time.Millisecond)
	}
}

// read applies entries until something is wrong or ctx ends.
func (s *stream) read(ctx context.Context, l *advisory.Lock) error {
	if err := s.recover(ctx); err != nil {
		return err
	}
	for ctx.Err() == nil {
		if !l.Holds() {
			return errLockLost
		}
		p, err := s.next(ctx)
		if err != nil {
			return err
		}
		s.answered()
		switch {
		case p.pending > int64(len(p.entries)): // somebody else has got some, or an answer was lost
			if !l.Confirm(ctx) {
				return errLockLost
			}
			err = s.recover(ctx)
		case len(p.entries) > 0:
			err = s.apply(ctx, p.entries)
		default:
			err = s.wait(ctx, p.last)
		}
		if err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}

// portion is what one read returns.
type portion struct {
	entries []goredis.XMessage
	pending int64  // what the group has not acknowledged, with these entries
	last    string // the id of the last entry that was delivered before
}

// next reads new entries, and looks whether some were removed before they were delivered. It does so in one
// transaction, so that nothing happens in between.
func (s *stream) next(ctx context.Context) (portion, error) {
	client, err := node(ctx, s.reads, s.name)
	if err != nil {
		return portion{}, explain(err)
	}
	tx := client.TxPipeline()
	about := tx.XInfoStream(ctx, s.name)
	groups := tx.XInfoGroups(ctx, s.name)
	read := tx.XReadGroup(ctx, &goredis.XReadGroupArgs{
		Group: s.r.cfg.Group, Consumer: consumerName, Streams: []string{s.name, ">"}, Count: int64(s.r.cfg.MaxPending),
		Block: -1,
	})
	pending := tx.XPending(ctx, s.name, s.r.cfg.Group)
	_, err = tx.Exec(ctx)
	if err := worst(about.Err(), groups.Err(), read.Err(), pending.Err(), err); err != nil {
		return portion{}, err
	}
	var p portion
	for _, one := range read.Val() {
		p.entries = append(p.entries, one.Messages...)
	}
	for _, g := range groups.Val() {
		if g.Name == s.r.cfg.Group {
			p.last = g.LastDeliveredID
			if n := s.trimmed.note(about.Val(), g); n > 0 {
				s.log.Error("entries were removed from the stream before they were read: they are lost", "entries", n)
			}
			if len(p.entries) < s.r.cfg.MaxPending {
				s.trimmed.reachedEnd(about.Val(), g, len(p.entries))
			}
		}
	}
	if pending.Val() != nil {
		p.pending = pending.Val().Count
	}
	return p, nil
}

// worst returns the error of a transaction that says most. If a command is refused, the others have the error that the
// transaction was discarded.
func worst(errs ...error) error {
	var first error
	for _, err := range errs {
		if err == nil || errors.Is(err, goredis.Nil) {
			continue
		}
		err = explain(err)
		if errors.Is(err, ErrRefused) {
			return err
		}
		first = cmp.Or(first, err)
	}
	return first
}

// waitFor is how long a stream is listened to before it is looked at again.
const waitFor = time.Second

// wait waits until the stream has an entry after the one with the id last.
func (s *stream) wait(ctx context.Context, last string) error {
	client, err := node(ctx, s.reads, s.name)
	if err != nil {
		return explain(err)
	}
	err = client.XRead(ctx, &goredis.XReadArgs{Streams: []string{s.name, last}, Count: 1, Block: waitFor}).Err()
	if err != nil && !errors.Is(err, goredis.Nil) {
		return explain(err)
	}
	return nil
}

// recover applies what was delivered and not acknowledged, in the order of the stream.
func (s *stream) recover(ctx context.Context) error {
	for ctx.Err() == nil {
		client, err := node(ctx, s.reads, s.name)
		if err != nil {
			return explain(err)
		}
		pending, err := client.XPendingExt(ctx, &goredis.XPendingExtArgs{
			Stream: s.name, Group: s.r.cfg.Group, Start: "-", End: "+", Count: int64(s.r.cfg.MaxPending),
		}).Result()
		if err != nil {
			return explain(err)
		}
		if len(pending) == 0 {
			return nil
		}
		pipe := client.Pipeline()
		found := make([]*goredis.XMessageSliceCmd, len(pending))
		for i, p := range pending {
			found[i] = pipe.XRangeN(ctx, s.name, p.ID, p.ID, 1)
		}
		if _, err := pipe.Exec(ctx); err != nil {
			return explain(err)
		}
		var entries []goredis.XMessage
		var gone []string
		for i, p := range pending {
			if one := found[i].Val(); len(one) > 0 {
				entries = append(entries, one[0])
			} else {
				gone = append(gone, p.ID)
			}
		}
		if len(gone) > 0 {
			s.log.Error("entries were removed from the stream before they were acknowledged: they come no more",
				"entries", len(gone), "first", gone[0])
			if err := s.acknowledge(ctx, gone); err != nil {
				return err
			}
		}
		if err := s.apply(ctx, entries); err != nil {
			return err
		}
		s.answered()
	}
	return context.Cause(ctx)
}

// apply settles entries, and acknowledges those that are settled, also when ctx has ended.
func (s *stream) apply(ctx context.Context, entries []goredis.XMessage) error {
	if len(entries) == 0 {
		return nil
	}
	ms := make([]receive.Message, len(entries))
	errs := usercode.Each("Config.Key", len(entries), usercode.Limit, func(i int) (func(), error) {
		m := s.message(entries[i])
		return func() { ms[i] = m }, nil
	})
	if err := errtext.Join(errs...); err != nil {
		return &endError{err}
	}
	outcomes, err := s.r.receiver.Receive(ctx, ms)
	var done []string
	for i, outcome := range outcomes {
		if outcome != "" {
			done = append(done, entries[i].ID)
		}
	}
	refused := s.acknowledge(ctx, done)
	switch {
	case err != nil && ctx.Err() == nil:
		return &endError{err}
	case err != nil:
		return err
	}
	return refused
}

func (s *stream) acknowledge(ctx context.Context, ids []string) error {
	if len(ids) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askTimeout)
	defer cancel()
	client, err := node(ctx, s.acks, s.name)
	if err != nil {
		return explain(err)
	}
	return explain(client.XAck(ctx, s.name, s.r.cfg.Group, ids...).Err())
}

func (s *stream) message(e goredis.XMessage) receive.Message {
	m := receive.Message{Message: consume.FromRedis(e.Values), Place: fmt.Sprintf("redis:%s@%s", s.name, e.ID)}
	if parsed, err := consume.Parse(m.Message); err == nil {
		m.Key = s.r.cfg.Key(parsed.Event, s.name)
	}
	return m
}
