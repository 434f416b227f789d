package outbox

// Generated code refers to the constant of the oldest release that it works with, so that code from a newer generator
// does not compile against an older runtime. Each release has its own constant; make release adds it.
const (
	IsAtLeastVersion0_1_0 = true
)
