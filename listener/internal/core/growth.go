package core

import "github.com/outboxgen/outboxgen/internal/call/errclass"

// The batches of a listener that publishes grow while they are published fast: one call of a publisher and one statement for
// many events cost little more than for few. LeaseBatches still counts batches of the usual size, so their growth does not
// change how many events are delivered again after a crash.

// growthSteps is how often a batch doubles. An event is sent after the one before with its key has arrived, so the last events
// of a call wait alone for their broker. The more events a call has, the less that costs.
const growthSteps = 4

// batchSize returns the size of the next batch.
func (c *Core) batchSize() int {
	return max(min(c.growth.Size(c.cfg.BatchSize), c.cfg.LeaseBatches*c.cfg.BatchSize), c.cfg.BatchSize)
}

// grow takes in how the batch of the lease went. After a failure batches are small for a while.
func (c *Core) grow() {
	if !c.cfg.Grows {
		return
	}
	done := 0
	for _, e := range c.lease.Events {
		switch {
		case e.Away || e.Result.Class == errclass.ClassFailed:
			c.growth.Reset(c.now)
			return
		case e.Status == Done:
			done++
		}
	}
	c.growth.Done(c.now, done, c.bytes)
}

// size is how many bytes of payload the events of the log have.
func (lease *Lease) size() (bytes int) {
	for _, e := range lease.Events {
		bytes += len(e.Payload)
	}
	return bytes
}

// Add adds an event that was read. It returns false if the batch has more events than usual already, and their payload is
// too much to keep with e: then the batch ends before e, and those behind are read again.
func (lease *Lease) Add(e *Entry, usual int) bool {
	if lease.bytes += len(e.Payload); lease.bytes > prefetchBytes && len(lease.Events) >= usual {
		lease.BatchSize = len(lease.Events)
		return false
	}
	lease.Events = append(lease.Events, e)
	return true
}
