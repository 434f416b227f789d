// Package events declares the events of this service in outbox.yaml, and contains the code that outboxgen
// generates from it.
package events

//go:generate go tool outboxgen generate
