// Package orders1 has the events of a shop, as edition 1 of its services knows them.
package orders1

//go:generate go tool outboxgen generate
