// Package ownedtx marks the transactions whose end belongs to somebody else, so that an enqueue finds what is inside
// them.
package ownedtx

import "github.com/jackc/pgx/v5"

// Tx is a transaction, or a savepoint, around another one.
type Tx interface {
	pgx.Tx
	inside() pgx.Tx
}

// Around is embedded by each Tx.
type Around struct{ pgx.Tx }

func (a Around) inside() pgx.Tx { return a.Tx }

// Innermost returns the transaction inside tx, or tx if it is not around another one.
func Innermost(tx any) any {
	for {
		outer, ok := tx.(Tx)
		if !ok {
			return tx
		}
		tx = outer.inside()
	}
}
