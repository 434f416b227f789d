package admin

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/internal/postgres/pgvalue"
	"github.com/outboxgen/outboxgen/internal/postgres/queries"
)

// quiet is how long a process must not have been seen before it can be forgotten: two renewals of its row.
const quiet = time.Minute

// UnknownProcessError says that no process has the worker id.
type UnknownProcessError struct{ WorkerID uuid.UUID }

// Error names the worker, and where the ids are.
func (e *UnknownProcessError) Error() string {
	return fmt.Sprintf("no process has the worker id %v: outboxgen processes lists them", e.WorkerID)
}

// RunningProcessError says that a process cannot be forgotten, because it was seen within the last minute.
type RunningProcessError struct {
	WorkerID uuid.UUID
	Seen     time.Duration // how long ago
}

// Error says what to do.
func (e *RunningProcessError) Error() string {
	return fmt.Sprintf("the process %v was seen %s ago, so it runs and would come back with its next beat: stop it, or wait a "+
		"minute", e.WorkerID, age(e.Seen))
}

// ForgetProcess deletes what the table processes has of a worker that is gone, and returns it: usually one row. It leaves
// the lists of this package, outboxgen status, the dashboard and Doctor at once. A process that still runs comes back
// with its next beat, within half a minute, and works meanwhile as before: nothing else depends on the row. A row that was
// renewed within the last minute stays. If there is no other, the error is a *RunningProcessError, and if there is none at
// all, an *UnknownProcessError.
func (a *Admin) ForgetProcess(ctx context.Context, workerID uuid.UUID) (forgotten []Process, err error) {
	const what = "forget process"
	act, err := a.actor(what)
	if err != nil {
		return nil, err
	}
	err = a.acting(ctx, what, Act{DryRun: a.preview}, func(q *queries.Queries) error {
		forgotten = nil
		rows, err := q.ProcessForget(ctx, queries.ProcessForgetParams{
			WorkerID: pgvalue.UUID(workerID), Quiet: pgvalue.Interval(quiet),
		})
		if err != nil {
			return err
		}
		running := RunningProcessError{WorkerID: workerID}
		for _, r := range rows {
			if r.Running {
				running.Seen = max(microseconds(r.AgeUs), 0)
				continue
			}
			p := Process{WorkerID: workerID, Kind: ProcessKind(r.Kind), Name: r.Name, Host: r.Host, PID: int(r.Pid)}
			forgotten = append(forgotten, p)
			scope := auditScope{Process: fmt.Sprintf("%s %s at %s:%d", p.Kind, p.Name, p.Host, p.PID)}
			if err := act.audit(ctx, q, "forget-process", scope, 0); err != nil {
				return err
			}
		}
		switch {
		case len(rows) == 0:
			return &UnknownProcessError{workerID}
		case len(forgotten) == 0:
			return &running
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return forgotten, nil
}
