-- What happened to a thing: the events of an entity or of a chain over all topics, and what has become of them.

-- name: FindByEntity :many
-- Lists the events of an entity in the order of their enqueue, behind one of them: those of queue topics, of the log, and of the
-- copies of listeners, of which there are few. An index serves each part, so a page reads no more of the first two than it
-- returns. seq is 0 for queue topics.
SELECT f.id, f.created_at, f.seq
FROM (
    (
        SELECT e.id, e.created_at, e.seq
        FROM outbox_schema.event_links AS e
        WHERE e.place IN ('queue', 'log')
          AND e.entity_type = @entity_type::text
          AND e.entity_id = @entity_id::text
          AND e.created_at >= @after_at::timestamptz
          AND (e.created_at > @after_at::timestamptz OR e.id > @after_id::uuid)
        ORDER BY e.created_at -- the order of the index: with the id all may be sorted
        FETCH FIRST (@event_limit::integer) ROWS WITH TIES
    )
    UNION
    (
        SELECT DISTINCT e.id, e.created_at, e.seq
        FROM outbox_schema.event_links AS e
        WHERE e.place IN ('dead', 'parked')
          AND e.entity_type = @entity_type::text
          AND e.entity_id = @entity_id::text
          AND e.created_at >= @after_at::timestamptz
          AND (e.created_at > @after_at::timestamptz OR e.id > @after_id::uuid)
        ORDER BY e.created_at, e.id, e.seq
        LIMIT @event_limit::integer
    )
) AS f
ORDER BY f.created_at, f.id
LIMIT @event_limit::integer;

-- name: FindByCorrelation :many
-- Lists the events of chains likewise, so many of each at most. The index has the beginning of the header, and the rest is
-- compared.
SELECT f.id, f.created_at, f.seq
FROM unnest(@correlations::text[]) AS c(correlation)
CROSS JOIN LATERAL (
    (
        SELECT e.id, e.created_at, e.seq
        FROM outbox_schema.event_links AS e
        WHERE e.place IN ('queue', 'log')
          AND left(e.correlation_id, 100) COLLATE "C" = left(c.correlation, 100)
          AND e.correlation_id = c.correlation
          AND e.created_at >= @after_at::timestamptz
          AND (e.created_at > @after_at::timestamptz OR e.id > @after_id::uuid)
        ORDER BY e.created_at -- the order of the index: with the id all may be sorted
        FETCH FIRST (@event_limit::integer) ROWS WITH TIES
    )
    UNION
    (
        SELECT DISTINCT e.id, e.created_at, e.seq
        FROM outbox_schema.event_links AS e
        WHERE e.place IN ('dead', 'parked')
          AND left(e.correlation_id, 100) COLLATE "C" = left(c.correlation, 100)
          AND e.correlation_id = c.correlation
          AND e.created_at >= @after_at::timestamptz
          AND (e.created_at > @after_at::timestamptz OR e.id > @after_id::uuid)
        ORDER BY e.created_at, e.id, e.seq
        LIMIT @event_limit::integer
    )
) AS f
ORDER BY f.created_at, f.id
LIMIT @all_limit::integer;

-- name: EventFacts :many
-- Reads what events are about, and the headers that say what has caused them: of queue topics and of the copies of listeners by
-- id, which all have the same facts, and of the log by position.
SELECT l.id, coalesce(l.entity_type, '')::text AS entity_type, coalesce(l.entity_id, '')::text AS entity_id,
    coalesce(l.entity_version, 0)::bigint AS entity_version, coalesce(l.causation_id, '')::text AS causation,
    coalesce(l.correlation_id, '')::text AS correlation
FROM unnest(@ids::uuid[]) AS w(id)
CROSS JOIN LATERAL (
    SELECT e.id, e.entity_type, e.entity_id, e.entity_version, e.causation_id, e.correlation_id
    FROM outbox_schema.event_links AS e
    WHERE e.place IN ('queue', 'dead', 'parked')
      AND e.id = w.id
    LIMIT 1 -- so that each is looked up by its key
) AS l
UNION ALL
SELECT e.id, coalesce(e.entity_type, '')::text AS entity_type, coalesce(e.entity_id, '')::text AS entity_id,
    coalesce(e.entity_version, 0)::bigint AS entity_version, coalesce(e.causation_id, '')::text AS causation,
    coalesce(e.correlation_id, '')::text AS correlation
FROM outbox_schema.event_links AS e
WHERE e.place = 'log'
  AND e.seq = ANY (@seqs::bigint[]);

-- name: EntityTypeList :many
-- Lists the types of entities that events have, by jumps from one to the next.
WITH RECURSIVE queued AS (
    (SELECT e.entity_type FROM outbox_schema.events AS e WHERE e.entity_type IS NOT NULL ORDER BY e.entity_type LIMIT 1)
    UNION ALL
    SELECT n.entity_type
    FROM queued AS w
    CROSS JOIN LATERAL (
        SELECT e.entity_type FROM outbox_schema.events AS e WHERE e.entity_type > w.entity_type ORDER BY e.entity_type LIMIT 1
    ) AS n
),
logged AS (
    (SELECT e.entity_type FROM outbox_schema.log AS e WHERE e.entity_type IS NOT NULL ORDER BY e.entity_type LIMIT 1)
    UNION ALL
    SELECT n.entity_type
    FROM logged AS w
    CROSS JOIN LATERAL (
        SELECT e.entity_type FROM outbox_schema.log AS e WHERE e.entity_type > w.entity_type ORDER BY e.entity_type LIMIT 1
    ) AS n
)
SELECT coalesce(t.entity_type, '')::text AS entity_type
FROM (
    (SELECT q.entity_type FROM queued AS q LIMIT @type_limit::integer)
    UNION
    (SELECT l.entity_type FROM logged AS l LIMIT @type_limit::integer)
) AS t
ORDER BY 1;

-- name: InboxOfEvents :many
-- Says of events what consumer groups have done with them, in this database: handled, quarantined, parked or dead. It jumps from
-- group to group, because the tables are in the order of groups.
WITH RECURSIVE handled AS (
    (SELECT p.consumer_group FROM outbox_schema.processed_events AS p ORDER BY p.consumer_group LIMIT 1)
    UNION ALL
    SELECT n.consumer_group
    FROM handled AS w
    CROSS JOIN LATERAL (
        SELECT p.consumer_group
        FROM outbox_schema.processed_events AS p
        WHERE p.consumer_group > w.consumer_group
        ORDER BY p.consumer_group
        LIMIT 1
    ) AS n
),
kept AS (
    (SELECT m.consumer_group FROM outbox_schema.inbox_messages AS m ORDER BY m.consumer_group LIMIT 1)
    UNION ALL
    SELECT n.consumer_group
    FROM kept AS w
    CROSS JOIN LATERAL (
        SELECT m.consumer_group
        FROM outbox_schema.inbox_messages AS m
        WHERE m.consumer_group > w.consumer_group
        ORDER BY m.consumer_group
        LIMIT 1
    ) AS n
)
SELECT g.consumer_group, i.id::uuid AS id,
    (CASE WHEN EXISTS (
        SELECT FROM outbox_schema.inbox_quarantined AS q WHERE q.consumer_group = g.consumer_group AND q.event_id = i.id
    ) THEN 'quarantined' ELSE 'handled' END)::text AS status,
    p.processed_at AS at, 0::integer AS attempts, NULL::timestamptz AS next_attempt_at, ''::text AS error
FROM handled AS g
CROSS JOIN unnest(@ids::uuid[]) AS i(id)
CROSS JOIN LATERAL (
    SELECT r.processed_at
    FROM outbox_schema.processed_events AS r
    WHERE r.consumer_group = g.consumer_group
      AND r.event_id = i.id
    LIMIT 1 -- so that each is looked up by its key
) AS p
UNION ALL
SELECT g.consumer_group, i.id::uuid AS id, m.status,
    m.failed_at AS at, m.attempts, m.next_attempt_at, m.error
FROM kept AS g
CROSS JOIN unnest(@ids::uuid[]) AS i(id)
CROSS JOIN LATERAL (
    SELECT r.status, r.failed_at, r.attempts, r.next_attempt_at, r.error
    FROM outbox_schema.inbox_messages AS r
    WHERE r.consumer_group = g.consumer_group
      AND r.message_id = i.id::text COLLATE "C"
    LIMIT 1
) AS m
ORDER BY 1, 4;

-- name: EntityVersionList :many
-- Says which version of an entity consumer groups have applied. It jumps from source to source, because the type and id of an
-- entity are behind group, source and tenant in the key.
WITH RECURSIVE source AS (
    (
        SELECT v.consumer_group, v.source
        FROM outbox_schema.entity_versions AS v
        ORDER BY v.consumer_group, v.source
        LIMIT 1
    )
    UNION ALL
    SELECT n.consumer_group, n.source
    FROM source AS w
    CROSS JOIN LATERAL (
        SELECT v.consumer_group, v.source
        FROM outbox_schema.entity_versions AS v
        WHERE (v.consumer_group, v.source) > (w.consumer_group, w.source)
        ORDER BY v.consumer_group, v.source
        LIMIT 1
    ) AS n
)
SELECT v.consumer_group, v.source, v.tenant_id, v.version, v.event_id, v.updated_at
FROM source AS s
CROSS JOIN unnest(@tenants::uuid[]) AS t(id)
CROSS JOIN LATERAL (
    SELECT r.consumer_group, r.source, r.tenant_id, r.version, r.event_id, r.updated_at
    FROM outbox_schema.entity_versions AS r
    WHERE r.consumer_group = s.consumer_group
      AND r.source = s.source
      AND r.tenant_id = t.id
      AND r.entity_type = @entity_type::text
      AND r.entity_id = @entity_id::text
    LIMIT 1
) AS v
ORDER BY v.consumer_group, v.source, v.tenant_id;

-- name: AuditLatest :many
-- Lists the latest acts of operators that are not older than since, in their order.
SELECT a.no, a.at, a.who, a.act, a.why, a.scope, a.events
FROM (
    SELECT b.no, b.at, b.who, b.act, b.why, b.scope, b.events
    FROM outbox_schema.audit AS b
    ORDER BY b.no DESC
    LIMIT @piece::integer
) AS a
WHERE a.at >= @since::timestamptz
ORDER BY a.no;

-- name: DeadLetterIDs :many
-- Reads the events of dead letters, for the audit.
SELECT DISTINCT d.id
FROM outbox_schema.dead_letters AS d
WHERE d.no = ANY (@nos::bigint[])
ORDER BY 1;

-- name: InboxMessageIDs :many
-- DeadLetterIDs for the dead messages of consumers.
SELECT DISTINCT m.event_id::uuid AS id
FROM outbox_schema.inbox_messages AS m
WHERE m.no = ANY (@nos::bigint[])
  AND m.event_id IS NOT NULL
ORDER BY 1;
