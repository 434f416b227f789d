package outbox

// Wake says how an idle dispatcher or listener finds new events.
type Wake string

const (
	// WakeDoorbell listens for the NOTIFY of an enqueue, which is sent only while a process sleeps.
	WakeDoorbell Wake = "doorbell"
	// WakePoll polls and does not use LISTEN. It is for pools behind a transaction pooler. An event waits up to
	// PollInterval while there are others, and up to MaxPollInterval after a time without events.
	WakePoll Wake = "poll"
)
