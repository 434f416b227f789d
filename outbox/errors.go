package outbox

import (
	"errors"
	"time"

	"github.com/outboxgen/outboxgen/eventkey"
	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/internal/postgres/jsonb"
	"github.com/outboxgen/outboxgen/internal/postgres/schemadb"
	"github.com/outboxgen/outboxgen/payload"
)

// Conditions that callers branch on with errors.Is. The facts of one occurrence are in the text of the
// error that wraps them, or in a typed error such as ValidationError. None of them ever carries a
// payload value.
var (
	// ErrTenantMismatch: the dedupe key of an event does not start with its tenant, or the event is not
	// the tenant's that WithTenant demands. Found before anything is sent.
	ErrTenantMismatch = errors.New("tenant mismatch")
	// ErrEmptyKeyPart: a field that a key is made of is an empty string, a zero UUID or a zero date. Found before
	// anything is sent.
	ErrEmptyKeyPart = eventkey.ErrEmptyPart
	// ErrKeyTooLong: a key is longer than MaxKeyBytes. Found before anything is sent.
	ErrKeyTooLong = errors.New("key too long")
	// ErrPayloadInvalid: a payload breaks a rule of its YAML, or holds what jsonb cannot. Found before
	// anything is sent.
	ErrPayloadInvalid = payload.ErrInvalid
	// ErrPayloadTooLarge: an encoded payload exceeds MaxPayloadBytes. Found before anything is sent.
	ErrPayloadTooLarge = jsonb.ErrTooLarge
	// ErrLeaseLost: the lease of the event ran out and another worker may have it. It is the cause of a handler's
	// cancelled context. The event must not be nacked.
	ErrLeaseLost = errors.New("lease lost")
	// ErrSerialization: PostgreSQL refused a statement with 40001 because the caller's transaction is REPEATABLE READ or
	// SERIALIZABLE. The transaction is aborted: roll it back and run it again.
	ErrSerialization = schemadb.ErrSerialization
	// ErrNotMigrated: the schema does not exist, or a table, column or function in it does not. The tables are older than
	// this module: run `outboxgen migrate up`.
	ErrNotMigrated = schemadb.ErrNotMigrated
	// ErrRestored: the database was restored from a dump, so that its transaction ids start again and the cursors
	// of its listeners do not fit them. `outboxgen listener rebase` corrects the cursors.
	ErrRestored = errors.New("database was restored: run `outboxgen listener rebase`")
	// ErrSequence: the sequence of the log does not number events as listeners need it. A restore of data alone, or a
	// logical copy, left it behind the log, or somebody has changed it. The error says what to do.
	ErrSequence = schemadb.ErrSequence
	// ErrUnimplemented: no handler has been written for a topic. The topic rests, and no attempt is charged.
	ErrUnimplemented = errclass.ErrUnimplemented
	// ErrBusy: a Run or a Drain of the same dispatcher, listener or worker is under way. Another one, also in another
	// process, may run or drain concurrently.
	ErrBusy = errors.New("is running already")
)

// Permanent marks err, returned by a handler, as one that no retry will fix: the event becomes a dead letter
// immediately. Permanent(nil) is nil.
func Permanent(err error) error { return errclass.Permanent(err) }

// IsPermanent reports whether err was marked by Permanent.
func IsPermanent(err error) bool { return errclass.IsPermanent(err) }

// RetryAfter marks err, returned by a handler, with the delay of the next attempt, instead of the topic's backoff; a
// negative delay counts as zero. It still uses up an attempt. RetryAfter(d, nil) is nil.
func RetryAfter(d time.Duration, err error) error { return errclass.RetryAfter(d, err) }

// ErrBehind is returned by a Publisher for an event that was not sent, because an earlier one with its key has failed.
var ErrBehind = errclass.ErrBehind

// ErrNotSent is returned by a Publisher, possibly wrapped, for an event that was certainly not sent, for a reason that
// is not the event: ctx ended, or the Publisher was stopped, before anything of the event was handed to the broker. The
// event is handed back with its attempt uncounted, and nothing rests.
var ErrNotSent = errclass.ErrNotSent

// Unavailable marks err as an error of the target and not of the event: a service that the handler calls, or a broker,
// is down. It means the same in a handler of a dispatcher, in a handler of a listener and in a Publisher. The event is
// handed back with its attempt uncounted. The topic of the handler, or the destination, rests. After each of its
// growing pauses one event is tried: see Breaker. Other topics and destinations do not rest.
//
// Unavailable(RetryAfter(d, err)) asks for a pause of at least d, up to five minutes. Permanent takes precedence over
// Unavailable. Unavailable(nil) is nil.
func Unavailable(err error) error {
	return errclass.Unavailable(err, false)
}

// BrokerUnavailable is Unavailable for a whole broker: there is no connection to it, or it refuses the credentials, so
// that none of its destinations can be reached. All its destinations rest. In a handler it means Unavailable.
// BrokerUnavailable(nil) is nil.
func BrokerUnavailable(err error) error {
	return errclass.Unavailable(err, true)
}

// IsUnavailable reports whether err was marked by Unavailable or BrokerUnavailable.
func IsUnavailable(err error) bool {
	is, _ := errclass.IsUnavailable(err)
	return is
}

// IsBrokerUnavailable reports whether err was marked by BrokerUnavailable. Of several marks the outermost counts.
func IsBrokerUnavailable(err error) bool {
	_, broker := errclass.IsUnavailable(err)
	return broker
}
