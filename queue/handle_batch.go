package queue

import (
	"context"
	"errors"
	"fmt"

	"github.com/outboxgen/outboxgen/internal/machine/config"
	"github.com/outboxgen/outboxgen/outbox"
)

// HandleBatch is Handle for a topic with TopicSpec.Batch: fn gets up to Batch.Size events in one call, in the order in
// which they were claimed. One claim takes them in the order in which they are due. It is an error of NewDispatcher if
// the topic has no Batch.Size, or one that is larger than 10,000; Handle for a topic that has one is an error too.
//
// A batch takes one of Config.Concurrency. It begins when it is full, or Batch.Wait after its first event was claimed
// if a worker is free then. In a drain it does not wait.
//
// If fn returns nil, all of its events are delivered. If it returns an outbox.BatchError, those that it names have
// failed, each with its own error, and the others are delivered. The BatchError may be wrapped; marks around it mean
// nothing. Any other error, a panic and runtime.Goexit fail the batch as a whole:
//
//   - One that is marked with Unavailable or RetryAfter is the error of each event, as if each had been alone.
//   - For any other, even one marked with Permanent, this process calls fn again with halves of the batch, until the
//     events that make it fail have each been called alone. Such an event has failed with the error of that call. The
//     others are delivered. For one event among 500 that takes at most 12 calls, the first one included. What fn has
//     done before it failed, it may do again.
//
// While a batch is halved its leases are held, and its attempts are not counted again. The search ends early when ctx
// ends, and after six times as many calls as one event takes. The events that were not called alone then have failed
// with the error of the batch, without its mark Permanent. Those on their last attempt are handed back instead, with
// the attempt uncounted. So an event becomes a dead letter only if fn has named it, has failed with it alone, or has marked
// the error of all with RetryAfter.
//
// The events of a batch whose process was killed come in batches without others, of at most half the size on the second
// attempt, a quarter on the third, and alone on the last.
//
// ctx is cancelled with outbox.ErrLeaseLost if the lease of one of the events is lost. A payload that does not decode
// is a permanent failure of its event, which is left out of the call.
func HandleBatch[P any](
	t outbox.Topic[P], h any, fn func(ctx context.Context, ds []outbox.Delivery[P]) error,
) Handler {
	if fn == nil {
		h = nil
	}
	return handleBatch(t.Untyped(), h, func(ctx context.Context, events []outbox.Event, payloads []any) error {
		ds := make([]outbox.Delivery[P], len(events))
		for i := range ds {
			ds[i] = outbox.Delivery[P]{Event: events[i], Payload: *payloads[i].(*P)}
		}
		return fn(ctx, ds)
	})
}

// handleBatch is HandleBatch without the type of the payload.
func handleBatch(
	t *outbox.UntypedTopic, h any, fn func(ctx context.Context, events []outbox.Event, payloads []any) error,
) Handler {
	th := HandleUntyped(t, nil, nil)
	if h == nil {
		return th
	}
	th.decoder, th.runBatch = config.Opener(t), fn
	return th
}

// eachError returns the error of each event that err names. each is false if it is the error of all.
func eachError(err error, events []outbox.Event) (errs []error, each bool) {
	var b *outbox.BatchError
	if !errors.As(err, &b) || b == nil {
		return nil, false
	}
	errs = make([]error, len(events))
	for i, e := range events {
		if errs[i] = b.Of(e); errs[i] != nil {
			each = true
		}
	}
	return errs, each || b.Err() == nil // one that names only other events is a mistake
}

// checkBatch checks that the topic of h has batches if its handler gets them.
func (h *Handler) checkBatch() error {
	switch b := h.batch; {
	case h.publication != nil && b != outbox.Batch{}:
		return errors.New("TopicSpec.Batch is for handlers: a publisher has its own batches")
	case h.run != nil && b != outbox.Batch{}:
		return errors.New("TopicSpec.Batch is set: use HandleBatch, or leave it out for one event per call")
	case h.runBatch != nil && (b.Size < 1 || b.Size > config.MaxBatchSize):
		return fmt.Errorf("TopicSpec.Batch.Size %d is not between 1 and %d: HandleBatch needs it", b.Size,
			config.MaxBatchSize)
	case b.Wait < 0:
		return fmt.Errorf("TopicSpec.Batch.Wait %s is negative", b.Wait)
	}
	return nil
}

// validateBatches checks what cfg says of batches, if one of handlers gets them.
func (cfg *Config) validateBatches(handlers []Handler) error {
	for i, m := range cfg.BatchMiddleware {
		if m == nil {
			return fmt.Errorf("field BatchMiddleware: function %d of %d is nil", i+1, len(cfg.BatchMiddleware))
		}
	}
	for _, h := range handlers {
		if h.runBatch != nil && len(cfg.Middleware) > 0 && cfg.BatchMiddleware == nil {
			return fmt.Errorf("field Middleware does not wrap the batches of topic %s/%s: set BatchMiddleware too; an empty "+
				"slice that is not nil means none", h.namespace, h.topic)
		}
	}
	return nil
}
