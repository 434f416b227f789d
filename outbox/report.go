package outbox

// DrainReport says what a Drain of a dispatcher or listener did. It is queue.Report and listener.Report.
type DrainReport struct {
	Delivered int // acked
	Retried   int // failed, due again later
	Dead      int // dead letters made, swept ones included
	Lost      int // handled, but the lease was lost meanwhile
	// HandedBack counts how often an event came back with its attempt uncounted, because its target was unavailable.
	HandedBack int
	// Resting names what was unavailable at the end: topics, as "namespace/name", and destinations, as
	// "broker:destination". Their events wait.
	Resting []string
}

// Add adds the numbers of o to those of r. Resting stays as it is.
func (r *DrainReport) Add(o DrainReport) {
	r.Delivered += o.Delivered
	r.Retried += o.Retried
	r.Dead += o.Dead
	r.Lost += o.Lost
	r.HandedBack += o.HandedBack
}
