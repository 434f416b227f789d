package admin

import (
	"context"

	"github.com/outboxgen/outboxgen/internal/dbsqlc"
)

// TopicsWithin is Topics with other bounds.
func (a *Admin) TopicsWithin(ctx context.Context, bytes, rows, exact int64, ids int32) (topics []TopicStatus, err error) {
	err = a.db.InSnapshot(ctx, a.pool, func(q *dbsqlc.Queries) (err error) {
		topics, err = readTopics(ctx, q, queueBounds{bytes: bytes, rows: rows, exact: exact, ids: ids})
		return err
	})
	return topics, err
}
