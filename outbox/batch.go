package outbox

import (
	"fmt"

	"github.com/google/uuid"
)

// BatchError says which events of a batch have failed, each with its own error, which may be marked, for example with
// Permanent. A handler of batches returns it when the others are done:
//
//	var failed outbox.BatchError
//	for _, d := range ds {
//		if err := send(ctx, d.Payload); err != nil {
//			failed.Fail(d.Event, err)
//		}
//	}
//	return failed.Err()
//
// The zero value has no failures. It must not be used concurrently.
type BatchError struct{ errs map[uuid.UUID]error }

// Fail notes that e has failed with err. A nil err changes nothing. The first error of an event counts.
func (b *BatchError) Fail(e Event, err error) {
	if _, there := b.errs[e.ID]; err == nil || there {
		return
	}
	if b.errs == nil {
		b.errs = make(map[uuid.UUID]error)
	}
	b.errs[e.ID] = err
}

// Err returns b, or nil if no event has failed.
func (b *BatchError) Err() error {
	if len(b.errs) == 0 {
		return nil
	}
	return b
}

// Of returns the error of e, nil if it has not failed.
func (b *BatchError) Of(e Event) error { return b.errs[e.ID] }

// Error says how many events have failed, and how one of them.
func (b *BatchError) Error() string {
	for id, err := range b.errs {
		if len(b.errs) == 1 {
			return fmt.Sprintf("event %s of the batch failed: %v", id, err)
		}
	}
	return fmt.Sprintf("%d events of the batch failed", len(b.errs))
}
