-- A schema of a neighbour whose functions and operators match the arguments of ours exactly, where those of pg_catalog take
-- any type or need a cast. PostgreSQL prefers them if the schema is anywhere in search_path. Nobody may call them, so that
-- EXPLAIN refuses a statement that would.
CREATE SCHEMA evil;
GRANT USAGE ON SCHEMA evil TO PUBLIC;

DO $$
DECLARE
    types text[] := '{text,varchar,int2,int4,int8,numeric,float8,uuid,timestamptz,interval,jsonb,bool,xid8}';
    f     record;
    t     text;
    u     text;
    op    text;
    args  text;
BEGIN
    types := types || array(SELECT x || '[]' FROM unnest(types) AS x WHERE x <> ALL ('{varchar,int2,numeric,float8,jsonb,xid8}'));
    -- functions of any type, and those whose argument a cast fits
    FOR f IN
        SELECT p.proname, p.proargtypes, p.prorettype, p.proretset, p.provariadic <> 0 AS variadic
        FROM pg_proc AS p
        WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.pronargs BETWEEN 1 AND 4
          AND p.proname = ANY (current_setting('evil.names')::text[]) AND (p.prokind = 'f' OR current_setting('evil.operators') = 'on')
    LOOP
        FOREACH t IN ARRAY types LOOP
            SELECT string_agg(CASE format_type(a.type, NULL)
                    WHEN 'anyarray' THEN t || '[]' WHEN 'anycompatiblearray' THEN t || '[]'
                    WHEN 'anyelement' THEN t WHEN 'anynonarray' THEN t WHEN 'anycompatible' THEN t WHEN 'anycompatiblenonarray' THEN t
                    WHEN '"any"' THEN t
                    WHEN 'text' THEN CASE WHEN t IN ('varchar', 'name') THEN t ELSE 'text' END
                    WHEN 'bigint' THEN CASE WHEN t IN ('int2', 'int4') THEN t ELSE 'int8' END
                    WHEN 'numeric' THEN CASE WHEN t IN ('int2', 'int4', 'int8') THEN t ELSE 'numeric' END
                    WHEN 'double precision' THEN CASE WHEN t IN ('int2', 'int4', 'int8', 'numeric') THEN t ELSE 'float8' END
                    WHEN 'timestamp with time zone' THEN CASE WHEN t = 'date' THEN t ELSE 'timestamptz' END
                    ELSE format_type(a.type, NULL)
                END, ',' ORDER BY a.n)
            INTO args
            FROM unnest(f.proargtypes) WITH ORDINALITY AS a (type, n);
            BEGIN
                IF to_regprocedure(format('pg_catalog.%I(%s)', f.proname, args)) IS NULL AND to_regprocedure(format('evil.%I(%s)', f.proname, args)) IS NULL THEN
                    EXECUTE format('CREATE FUNCTION evil.%I(%s) RETURNS %s LANGUAGE plpgsql AS ''BEGIN RAISE ''''captured''''; END''',
                        f.proname, args, CASE WHEN f.proretset THEN 'SETOF ' ELSE '' END || CASE format_type(f.prorettype, NULL)
                            WHEN 'anyarray' THEN t || '[]' WHEN 'anycompatiblearray' THEN t || '[]'
                            WHEN 'anyelement' THEN t WHEN 'anycompatible' THEN t
                            ELSE format_type(f.prorettype, NULL) END);
                END IF;
            EXCEPTION WHEN undefined_object OR invalid_function_definition OR syntax_error OR datatype_mismatch THEN NULL; -- text[][]
            END;
        END LOOP;
    END LOOP;
    -- Operators. Without them, and without aggregates, a statement that calls them can still be prepared.
    IF current_setting('evil.operators') = 'off' THEN
        RETURN;
    END IF;
    FOREACH t IN ARRAY types LOOP
        FOREACH u IN ARRAY types LOOP
            EXECUTE format('CREATE FUNCTION evil.op(%s, %s) RETURNS bool LANGUAGE plpgsql AS ''BEGIN RAISE ''''captured''''; END''', t, u);
            FOREACH op IN ARRAY '{=,<>,<,<=,>,>=,||,+,-,*,/,%,&,|,#,~,!~,@>,<@,&&,->,->>,<<,>>}'::text[] LOOP
                IF to_regoperator(format('pg_catalog.%s(%s,%s)', op, t, u)) IS NULL THEN
                    EXECUTE format('CREATE OPERATOR evil.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = evil.op)', op, t, u);
                END IF;
            END LOOP;
        END LOOP;
    END LOOP;
END
$$;

REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA evil FROM PUBLIC;
