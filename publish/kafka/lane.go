package kafka

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/publish"
)

// A lane is the producer of one shard of a listener for one destination, if Config.TransactionalID is set. Its
// transactional id is the same in every process. Who takes over the id gets a higher epoch, and from then on the
// cluster refuses everything of the producers before, also requests that are still on their way.
//
// The process that takes over the id may itself be late. So after that, and before the first record, it asks whether it
// still has the lease of the shard. A record is sent only by a process that has had the lease after the id. When
// another process has both later, the cluster refuses that record, or has written it before. When a late process takes
// the id but not the lease, it sends nothing, and the holder takes the id back.
type lane struct {
	id     string
	turn   chan struct{} // has one element while a call uses the lane
	client *client       // nil until the first call, and after a failure
}

// errAborted is the result of a record that was written in a transaction that was not committed, because of other
// records.
var errAborted = errors.New("the transaction was aborted")

// lane returns the lane of a call of Publish.
func (p *Publisher) lane(name string) *lane {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.lanes[name]
	if l == nil {
		l = &lane{id: p.transactionalID(name), turn: make(chan struct{}, 1)}
		if p.lanes == nil {
			p.lanes = make(map[string]*lane)
		}
		p.lanes[name] = l
	}
	return l
}

// transactionalID returns the transactional id of a lane and destination.
func (p *Publisher) transactionalID(name string) string { return p.cfg.TransactionalID + "/" + name }

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
	if err := c.takeOver(ctx, waiting, made); err != nil {
		made.close()
		return nil, err
	}
	l.client = made
	return made, nil
}

// takeOver takes the transactional id of the call's lane and those of the listener's earlier lanes, and then asks for
// the lease. Requests to the cluster end with waiting.
func (c *call) takeOver(ctx, waiting context.Context, made *client) error {
	failed := func(id string, err error) error {
		switch {
		case ctx.Err() != nil:
			return notSent(ctx)
		case waiting.Err() != nil && made.away():
			return outbox.BrokerUnavailable(fmt.Errorf("take over transactional id %s: %w", id, made.explain(errNoAnswer)))
		case classOf(err) == denied:
			return outbox.BrokerUnavailable(fmt.Errorf("take over transactional id %s: %w", id, made.explain(err)))
		}
		return outbox.Unavailable(fmt.Errorf("take over transactional id %s: %w", id, err))
	}
	if _, _, err := made.kgo.ProducerID(waiting); err != nil {
		return failed(c.lane.id, err)
	}
	if c.of.Earlier != nil {
		names, err := c.of.Earlier(ctx)
		if err != nil {
			return fmt.Errorf("produce event: %w: %w", outbox.ErrNotSent, err)
		}
		errs := make([]error, len(names))
		var all sync.WaitGroup
		for i := range names {
			names[i] = c.p.transactionalID(names[i] + "/" + c.events[0].Destination)
			all.Go(func() { errs[i] = made.fence(waiting, names[i], c.p.cfg.Timeout) })
		}
		all.Wait()
		for i, err := range errs {
			if err != nil {
				return failed(names[i], err)
			}
		}
	}
	if err := c.of.Held(ctx); err != nil {
		return fmt.Errorf("produce event: %w: %w", outbox.ErrNotSent, err)
	}
	return nil
}

// fence makes the cluster refuse all producers that have a transactional id, and abort their transaction. c does not
// use the id itself.
func (c *client) fence(ctx context.Context, id string, timeout time.Duration) error {
	for fails := 1; ; fails++ {
		req := kmsg.NewPtrInitProducerIDRequest()
		req.TransactionalID, req.TransactionTimeoutMillis = &id, int32(transactionTimeout(timeout).Milliseconds())
		resp, err := req.RequestWith(ctx, c.kgo)
		if err == nil {
			err = kerr.ErrorForCode(resp.ErrorCode)
		}
		if !errors.Is(err, kerr.ConcurrentTransactions) {
			return err
		}
		select { // the cluster is still aborting the transaction
		case <-ctx.Done():
			return err
		case <-time.After(backoff(fails)):
		}
	}
}

// maxFenced is how often a call takes its transactional id back.
const maxFenced = 3

// conclude commits the transaction of a round if all records were written. Otherwise it changes the results of those
// that were: the next producer of the lane aborts the transaction. A failed producer is not used again. If another
// process has taken the transactional id, the records are sent again, should this process still have the lease.
//
// If a partition got its records in several batches (see client) and some failed, all of them are sent again: those
// that were written come first. The producer of that attempt is new, and sends nothing early.
func (c *call) conclude(ctx context.Context, producer *client, records []kgo.Record, errs []error) {
	failed := false
	written := make(map[target]bool)
	for i, err := range errs {
		failed = failed || err != nil
		if err == nil {
			written[target{records[i].Topic, records[i].Partition}] = true
		}
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
		clear(written)
	}
	producer.unfit = true
	again := false
	for i, err := range errs {
		if err == nil || written[target{records[i].Topic, records[i].Partition}] {
			errs[i] = errAborted
		} else if takenOver(err) && c.fenced < maxFenced {
			errs[i], again = errAborted, true
		}
	}
	if again {
		c.fenced++
	}
}

// takenOver reports whether a producer has failed because its transactional id was taken, or its transaction was
// aborted.
func takenOver(err error) bool {
	return classOf(err) == fenced || errors.Is(err, kerr.InvalidTxnState) || errors.Is(err, kerr.TransactionAbortable)
}

// transactional returns the options of the producer of a lane.
func transactional(id string, timeout time.Duration) []kgo.Opt {
	return []kgo.Opt{kgo.TransactionalID(id), kgo.TransactionTimeout(transactionTimeout(timeout))}
}

func transactionTimeout(timeout time.Duration) time.Duration {
	return min(max(2*timeout, 10*time.Second), 10*time.Minute)
}
