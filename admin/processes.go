package admin

import (
	"context"

	"github.com/outboxgen/outboxgen/internal/dbschema"
)

// Processes returns the running dispatchers and listeners: those that have renewed their row in processes within the last
// ninety seconds.
func (a *Admin) Processes(ctx context.Context) ([]Process, error) {
	processes, err := aliveProcesses(ctx, a.db.Each(a.pool))
	if err != nil {
		return nil, dbschema.Wrap("list processes", err)
	}
	return processes, nil
}
