package kafka

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxgen/outboxgen/consume"
	"github.com/outboxgen/outboxgen/consume/receive"
)

// The numbers of records that wait in a partition when its fetches are paused and when they are resumed, and how many
// are settled at a time.
const (
	highWater = 4000
	lowWater  = 1000
	turn      = 1000
)

// partition settles the records of one partition, in order, in its own goroutine.
type partition struct {
	r      *Receiver
	target target
	client *kgo.Client
	ctx    context.Context
	stop   context.CancelFunc
	done   chan struct{} // closed when the goroutine has ended
	more   chan struct{} // has an element when there are records

	mu      sync.Mutex
	waiting []*kgo.Record
	paused  bool // its fetches are paused, which outlives the assignment
	ended   bool
}

// open begins a Run.
func (r *Receiver) open(ctx context.Context, stop context.CancelCauseFunc) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ctx, r.fail = ctx, stop
}

// close stops all partitions. Their offsets are committed when the client leaves the group: see revoked.
func (r *Receiver) close() {
	r.mu.Lock()
	all := slices.Collect(maps.Values(r.partitions))
	clear(r.partitions)
	r.mu.Unlock()
	end(all)
}

// assigned starts partitions. The client calls it before it fetches from them.
func (r *Receiver) assigned(_ context.Context, client *kgo.Client, assigned map[string][]int32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for topic, numbers := range assigned {
		for _, n := range numbers {
			t := target{topic, n}
			if r.partitions[t] != nil {
				continue
			}
			ctx, stop := context.WithCancel(r.ctx)
			p := &partition{
				r: r, target: t, client: client, ctx: ctx, stop: stop, done: make(chan struct{}), more: make(chan struct{}, 1),
			}
			r.partitions[t] = p
			go p.run()
		}
	}
}

// revoked ends partitions and commits what they have settled. The client calls it before another process gets them.
func (r *Receiver) revoked(_ context.Context, client *kgo.Client, revoked map[string][]int32) {
	r.drop(revoked)
	r.commit(client)
}

// lost ends partitions that another process may have already.
func (r *Receiver) lost(_ context.Context, _ *kgo.Client, lost map[string][]int32) { r.drop(lost) }

// drop ends partitions and waits for their transactions.
func (r *Receiver) drop(dropped map[string][]int32) {
	r.mu.Lock()
	var ended []*partition
	for topic, numbers := range dropped {
		for _, n := range numbers {
			t := target{topic, n}
			if p := r.partitions[t]; p != nil {
				ended = append(ended, p)
				delete(r.partitions, t)
			}
		}
	}
	r.mu.Unlock()
	end(ended)
}

// end stops partitions and waits for their transactions.
func end(all []*partition) {
	for _, p := range all {
		p.stop()
	}
	for _, p := range all {
		<-p.done
	}
}

// commit commits the offsets of what is settled. If that fails, the records come again and are duplicates.
func (r *Receiver) commit(client *kgo.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), commitTimeout)
	defer cancel()
	if err := client.CommitMarkedOffsets(ctx); err != nil {
		r.log.Warn("offsets are not committed: their records come again, as duplicates", "error", err)
	}
}

// hand gives records to their partition. Records of a partition that has gone are dropped: they come again elsewhere.
func (r *Receiver) hand(t target, records []*kgo.Record) {
	r.mu.Lock()
	p := r.partitions[t]
	r.mu.Unlock()
	if p == nil {
		return
	}
	p.mu.Lock()
	p.waiting = append(p.waiting, records...)
	if len(p.waiting) > highWater && !p.paused && !p.ended {
		p.pause(true)
	}
	p.mu.Unlock()
	select {
	case p.more <- struct{}{}:
	default:
	}
}

// take returns the next records.
func (p *partition) take() []*kgo.Record {
	p.mu.Lock()
	n := min(len(p.waiting), turn)
	records := p.waiting[:n:n]
	p.waiting = p.waiting[n:]
	if len(p.waiting) == 0 {
		p.waiting = nil
	}
	if p.paused && len(p.waiting) <= lowWater {
		p.pause(false)
	}
	p.mu.Unlock()
	return records
}

// pause pauses or resumes the fetches of p. The caller holds p.mu, so that the client gets the calls in their order.
func (p *partition) pause(paused bool) {
	p.paused = paused
	this := map[string][]int32{p.target.topic: {p.target.partition}}
	if paused {
		p.client.PauseFetchPartitions(this)
	} else {
		p.client.ResumeFetchPartitions(this)
	}
}

// run settles records until the partition is stopped.
func (p *partition) run() {
	defer close(p.done)
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.ended = true; p.paused {
			p.pause(false)
		}
	}()
	defer p.stop()
	for p.ctx.Err() == nil {
		records := p.take()
		if len(records) == 0 {
			select {
			case <-p.more:
			case <-p.ctx.Done():
			}
			continue
		}
		messages := make([]receive.Message, 0, len(records))
		for _, record := range records {
			if !record.Attrs.IsControl() { // the end of a transaction
				messages = append(messages, messageOf(record))
			}
		}
		outcomes, err := p.r.receiver.Receive(p.ctx, messages)
		settled := 0
		for ; settled < len(records); settled++ {
			if records[settled].Attrs.IsControl() {
				continue
			}
			if len(outcomes) == 0 || outcomes[0] == "" {
				break
			}
			outcomes = outcomes[1:]
		}
		if settled > 0 {
			p.client.MarkCommitRecords(records[settled-1])
		}
		if settled < len(records) && err == nil { // what follows must not be marked
			err = fmt.Errorf("the record %s/%d@%d is not settled", p.target.topic, p.target.partition, records[settled].Offset)
		}
		if err != nil {
			if p.ctx.Err() == nil {
				p.r.fail(err)
			}
			return
		}
	}
}

// messageOf returns the message of a record.
func messageOf(r *kgo.Record) receive.Message {
	return receive.Message{
		Message: consume.FromKafka(r.Headers, r.Value), Key: string(r.Key),
		Place: fmt.Sprintf("kafka:%s/%d@%d", r.Topic, r.Partition, r.Offset),
	}
}
