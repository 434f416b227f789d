package outbox

// Wake says how an idle dispatcher learns of new events.
type Wake string

const (
	// WakeDoorbell listens for the NOTIFY of an enqueue, which is sent only while a process sleeps.
	WakeDoorbell Wake = "doorbell"
	// WakePoll does without LISTEN, for pools behind a transaction pooler: an event waits for up to PollInterval while
	// there are others, and for up to MaxPollInterval after a time without any.
	WakePoll Wake = "poll"
)
