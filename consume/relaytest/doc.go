// Package relaytest has only tests: what the publishers send, the consumers apply. It is a separate module, so that a
// service that consumes does not load the publishers.
package relaytest
