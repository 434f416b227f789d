package kafka

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
)

// A lane is the producer of one shard of a listener for one destination, if Config.TransactionalID is set. Its transactional
// id is the same in every process. Who takes over the id gets a higher epoch, and from then on the cluster refuses everything
// of the producers before, also requests that are still on their way.
//
// The process that takes over the id may itself be late. So after that, and before the first record, it asks whether it still
// has the lease of the shard. A record is sent only by a process that has had the lease after the id. When another process
// has both later, the cluster refuses that record, or has written it before. When a late process takes the id but not the
// lease, it sends nothing, and the holder takes the id back.
type lane struct {
	id     string
	turn   chan struct{} // has one element while a call uses the lane
	client *client       // nil until the first call, and after a failure
}

// errAborted is the result of a record that was written in a transaction that was not committed, because of other records.
var errAborted = errors.New("the transaction was aborted")

// lane returns the lane of a call of Publish.
func (p *Publisher) lane(name string) *lane {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.lanes[name]
	if l == nil {
		l = &lane{id: p.cfg.TransactionalID + "/" + name, turn: make(chan struct{}, 1)}
		if p.lanes == nil {
			p.lanes = make(map[string]*lane)
		}
		p.lanes[name] = l
	}
	return l
}

// sendInLane publishes events for a shard of a listener.
func (p *Publisher) sendInLane(ctx context.Context, of publish.Lane, events []publish.Outgoing) []error {
	c := newCall(p, events)
	c.of, c.lane = of, p.lane(of.Name+"/"+events[0].Destination)
	select {
	case c.lane.turn <- struct{}{}:
	case <-ctx.Done():
		return c.halt(ctx, notSent(ctx))
	}
	c.run(ctx, nil)
	if c.lane.client != nil && c.lane.client.unfit {
		c.lane.drop()
	}
	<-c.lane.turn
	return c.errs
}

func (l *lane) drop() {
	l.client.close()
	l.client = nil
}

// producer returns the producer of the call's lane, or why there is none.
func (c *call) producer(ctx context.Context) (*client, error) {
	l := c.lane
	if l.client != nil && !l.client.unfit {
		return l.client, nil
	}
	if l.client != nil {
		l.drop()
	}
	made, err := newClient(c.p.cfg, c.p.log, l.id)
	if err != nil {
		return nil, outbox.BrokerUnavailable(fmt.Errorf("connect to Kafka: %w", err))
	}
	waiting, cancel := context.WithTimeoutCause(ctx, c.p.cfg.Timeout, errNoAnswer)
	defer cancel()
	if _, _, err := made.kgo.ProducerID(waiting); err != nil {
		defer made.close()
		switch {
		case ctx.Err() != nil:
			return nil, notSent(ctx)
		case waiting.Err() != nil && made.away():
			return nil, outbox.BrokerUnavailable(fmt.Errorf("take over transactional id %s: %w", l.id, errNoAnswer))
		}
		return nil, outbox.Unavailable(fmt.Errorf("take over transactional id %s: %w", l.id, err))
	}
	if err := c.of.Held(ctx); err != nil {
		made.close()
		return nil, fmt.Errorf("produce event: %w: %w", outbox.ErrNotSent, err)
	}
	l.client = made
	return made, nil
}

// maxFenced is how often a call takes its transactional id back.
const maxFenced = 3

// conclude commits the transaction of a round if all records were written. Otherwise it changes the results of those that
// were: the next producer of the lane aborts the transaction. A failed producer is not used again. If another process has
// taken the transactional id, the records are sent again, should this process still have the lease.
func (c *call) conclude(ctx context.Context, producer *client, errs []error) {
	failed := false
	for _, err := range errs {
		failed = failed || err != nil
	}
	if !failed {
		ending, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), c.p.cfg.Timeout, errNoAnswer)
		defer cancel()
		err := producer.kgo.EndTransaction(ending, kgo.TryCommit)
		if err == nil {
			return
		}
		for i := range errs {
			errs[i] = err
		}
	}
	producer.unfit = true
	again := false
	for i, err := range errs {
		if err == nil {
			errs[i] = errAborted
		} else if takenOver(err) && c.fenced < maxFenced {
			errs[i], again = errAborted, true
		}
	}
	if again {
		c.fenced++
	}
}

// takenOver reports whether a producer has failed because its transactional id was taken, or its transaction was aborted.
func takenOver(err error) bool {
	return classOf(err) == fenced || errors.Is(err, kerr.InvalidTxnState) || errors.Is(err, kerr.TransactionAbortable)
}

// transactional returns the options of the producer of a lane.
func transactional(id string, timeout time.Duration) []kgo.Opt {
	return []kgo.Opt{kgo.TransactionalID(id), kgo.TransactionTimeout(min(max(2*timeout, 10*time.Second), 10*time.Minute))}
}
