"""Views by shape, for the laws that each of them keeps: name, key and SQL over three small tables."""

from __future__ import annotations

from tests.views.engine import relation

RELATIONS = {
    each.name: each
    for each in (
        relation("public.a", ["id"], id="int64", k="int64", g="string", n="int64", at="timestamp_micros"),
        relation("public.b", ["id"], id="int64", k="int64", z="int64", at="timestamp_micros"),
        relation("public.c", ["x", "y"], x="int64", y="int64", g="string"),
    )
}

_SHAPES = """
sketches: g
    SELECT g, approx_count_distinct(n) AS v, approx_count_distinct(k, 0.1) AS w FROM public.a GROUP BY g

sketches, not of all rows: g
    SELECT g, approx_count_distinct(n) FILTER (WHERE k > 1) AS v FROM public.a WHERE n < 3 GROUP BY g

sketches beside others: g
    SELECT g, count(*) AS c, avg(n) AS s, approx_count_distinct(k) AS v, approx_percentile(n, 0.5) AS p,
        approx_top_k(k, 2) AS t
    FROM public.a GROUP BY g HAVING approx_count_distinct(k) + min(n) > 1

sketches over a join: k
    SELECT a.k, approx_count_distinct(b.z) AS v FROM public.a a LEFT JOIN public.b b ON b.k = a.k GROUP BY a.k

sketches merged: g
    WITH by_k AS (SELECT g, k, hll_sketch_agg(n) AS s FROM public.a WHERE n IS NOT NULL GROUP BY g, k)
    SELECT g, hll_sketch_estimate(hll_union_agg(s)) AS v, count(*) AS c FROM by_k GROUP BY g

sketches and time: g
    SELECT g, approx_count_distinct(n) AS v FROM public.a WHERE at <= clock() GROUP BY g

sketches of everything: v
    SELECT approx_count_distinct(n) AS v, approx_top_k(g, 2) AS t FROM public.a

inner: id, b
    SELECT a.id, b.id AS b, a.g, b.z FROM public.a a JOIN public.b b ON b.k = a.k

inner by where: id, b
    SELECT a.id, b.id AS b, b.z FROM public.a a, public.b b WHERE b.k = a.k AND b.z > 1

null-safe: id, b
    SELECT a.id, b.id AS b FROM public.a a JOIN public.b b ON b.k <=> a.k

left: id, b
    SELECT a.id, b.id AS b, a.n, b.z FROM public.a a LEFT JOIN public.b b ON b.k = a.k AND b.z > 1

left, filtered: id, b
    SELECT a.id, b.id AS b, b.z FROM public.a a LEFT JOIN public.b b ON b.k = a.k WHERE b.z IS NULL OR b.z > 1

left, unit of the first alone: id
    SELECT a.id, max(b.z) AS z, count(b.id) AS n FROM public.a a LEFT JOIN public.b b ON b.k = a.k GROUP BY a.id

listed in their parent: id
    SELECT a.id, a.g, listagg(CAST(b.z AS STRING), ',') WITHIN GROUP (ORDER BY b.z DESC, b.at) AS zs
    FROM public.a a LEFT JOIN public.b b ON b.k = a.k GROUP BY a.id, a.g

listed by the clock: g
    SELECT g, listagg(CAST(n AS STRING), ',') WITHIN GROUP (ORDER BY CASE WHEN at + INTERVAL 1 MINUTE <= clock()
    THEN 1 END, id) FILTER (WHERE at <= clock()) AS ns,
    max_by(n, CASE WHEN at + INTERVAL 2 MINUTES <= clock() THEN id END) AS m FROM public.a GROUP BY g

right: id, b
    SELECT a.id, b.id AS b, a.n FROM public.a a RIGHT JOIN public.b b ON b.k = a.k

anti: id
    SELECT a.id, a.g FROM public.a a LEFT JOIN public.b b ON b.k = a.k WHERE b.id IS NULL

semi join: id
    SELECT a.id, a.g FROM public.a a LEFT SEMI JOIN public.b b ON b.k = a.k AND b.z > 0

exists: id
    SELECT a.id, a.g FROM public.a a WHERE a.n > 0 AND EXISTS (SELECT 1 FROM public.b b WHERE b.k = a.k AND b.z > 0)

exists, by names of its own: id
    SELECT id, g FROM public.a WHERE EXISTS (SELECT 1 FROM public.b WHERE k = a.n AND z > 0 AND n < 3)

not exists: id
    SELECT a.id, a.g FROM public.a a LEFT JOIN public.c c ON c.x = a.id AND c.y = 0
    WHERE NOT EXISTS (SELECT 1 FROM public.b b WHERE b.k <=> coalesce(c.y, a.k))

in: id
    SELECT id, g FROM public.a WHERE k IN (SELECT max(k) FROM public.b GROUP BY z) AND n + 1 IN (SELECT x FROM public.c)

anti join: id
    SELECT a.id, a.g FROM public.a a LEFT ANTI JOIN public.b b ON b.k = a.k

three ways: id, b, x, y
    SELECT a.id, b.id AS b, c.x, c.y FROM public.a a JOIN public.b b ON b.k = a.k JOIN public.c c ON c.x = b.z

left then left: id, b, x, y
    SELECT a.id, b.id AS b, c.x, c.y, c.g FROM public.a a LEFT JOIN public.b b ON b.k = a.k LEFT JOIN public.c c
    ON c.x = b.z

left then left by either: id, b, x, y
    SELECT a.id, b.id AS b, c.x, c.y FROM public.a a LEFT JOIN public.b b ON b.k = a.k LEFT JOIN public.c c ON
    c.x = coalesce(b.z, a.n)

left then inner: id, b, x, y
    SELECT a.id, b.id AS b, c.x, c.y FROM public.a a LEFT JOIN public.b b ON b.k = a.k JOIN public.c c ON c.x =
    coalesce(b.z, a.n)

inner then left: id, b, x, y
    SELECT a.id, b.id AS b, c.x, c.y FROM public.a a JOIN public.b b ON b.k = a.k LEFT JOIN public.c c ON c.x =
    b.z AND c.g = a.g

self: id, other
    SELECT a.id, o.id AS other FROM public.a a JOIN public.a o ON o.n = a.k

self left: id, other
    SELECT a.id, o.id AS other, o.g FROM public.a a LEFT JOIN public.a o ON o.k = a.n

group: g
    SELECT g, count(*) AS n, sum(n) AS s, avg(n) AS v, min(k) AS lo, max(k) AS hi FROM public.a GROUP BY g

group of a join: g, z
    SELECT a.g, b.z, count(*) AS n, sum(a.n) AS s FROM public.a a JOIN public.b b ON b.k = a.k GROUP BY a.g, b.z

group by the null side: z
    SELECT b.z, count(*) AS n FROM public.a a LEFT JOIN public.b b ON b.k = a.k GROUP BY b.z

having: g
    SELECT g, count(*) AS n FROM public.a GROUP BY g HAVING count(*) > 1 AND max(n) > 0

count distinct: g
    SELECT g, count(DISTINCT k) AS n, sum(DISTINCT n) AS s FROM public.a GROUP BY g

filter: g
    SELECT g, count(*) FILTER (WHERE n > 1) AS n, count_if(k > 1) AS m FROM public.a GROUP BY g

part of the group is the key: id
    SELECT id, g, count(*) AS n FROM public.a GROUP BY id, g

global: n
    SELECT count(*) AS n, sum(n) AS s FROM public.a

distinct: g, k
    SELECT DISTINCT g, k FROM public.a

distinct, one value twice: a, g
    SELECT a, b, g FROM (SELECT DISTINCT k AS a, k AS b, g FROM public.a) WHERE a > 0

top, divided by one value twice: id
    SELECT g, id, rn FROM (SELECT g, id, rank() OVER (PARTITION BY g, k, g ORDER BY n) AS rn FROM public.a)
    WHERE rn <= 2

top: id
    SELECT g, id, rn FROM (SELECT g, id, row_number() OVER (PARTITION BY g ORDER BY n DESC, id) AS rn FROM
    public.a) WHERE rn <= 2

top, divided by the key: g, id
    SELECT g, id, n FROM (SELECT g, id, n, row_number() OVER w AS rn FROM public.a WINDOW w AS (PARTITION BY g
    ORDER BY n, id)) WHERE rn <= 2

window of the view: g, id
    SELECT g, id, lag(n, 1, -1) OVER (PARTITION BY g ORDER BY n DESC, id) AS before FROM public.a

ranks of groups: g, k
    SELECT g, k, sum(n) AS s, rank() OVER (PARTITION BY g ORDER BY sum(n)) AS r FROM public.a GROUP BY g, k

sessions: g, session
    WITH marked AS (SELECT id, g, at, CASE WHEN at - INTERVAL 3 MINUTES <= lag(at) OVER (PARTITION BY g ORDER BY
    at, id) THEN 0 ELSE 1 END AS starts FROM public.a WHERE at IS NOT NULL), numbered AS (SELECT g, at,
    sum(starts) OVER (PARTITION BY g ORDER BY at, id ROWS UNBOUNDED PRECEDING) AS session FROM marked) SELECT g,
    session, min(at) AS first, max(at) AS last, count(*) AS n FROM numbered GROUP BY g, session

sliding: g, id
    SELECT id, g, count(*) OVER (PARTITION BY g ORDER BY at RANGE BETWEEN INTERVAL 2 MINUTES PRECEDING AND
    CURRENT ROW) AS n FROM public.a WHERE at IS NOT NULL

tumbling: hour
    SELECT date_trunc('HOUR', at + INTERVAL 57 MINUTES) AS hour, count(*) AS n FROM public.a GROUP BY 1

union all: kind, id
    SELECT 'a' AS kind, id, k FROM public.a UNION ALL SELECT 'b', id, z FROM public.b WHERE z > 0

union of groups by other names: kind, g
    SELECT 'a' AS kind, g, count(*) AS n FROM public.a GROUP BY g UNION ALL
    SELECT 'c' AS what, g AS h, max(x) FROM public.c GROUP BY what, h HAVING max(x) > 0

a number below zero as a group: k
    SELECT k, sum(n) AS n FROM public.a WHERE k >= 0 GROUP BY k UNION ALL SELECT -1 AS k, sum(n) FROM public.a
    GROUP BY 1

group of a union: k
    SELECT k, count(*) AS n FROM (SELECT id, k FROM public.a UNION ALL SELECT id, k FROM public.b UNION ALL
    SELECT x, y FROM public.c) GROUP BY k

union of groups: k
    SELECT k, sum(n) AS n FROM (SELECT k, count(*) AS n FROM public.a GROUP BY k UNION ALL SELECT z, max(k) FROM
    public.b GROUP BY z) GROUP BY k

union: k, g
    SELECT k, g FROM public.a UNION SELECT x, g FROM public.c

except: k, g
    SELECT k, g FROM public.a EXCEPT SELECT x, g FROM public.c

intersect, then except: k
    SELECT k FROM public.a INTERSECT SELECT k FROM public.b EXCEPT (SELECT z FROM public.b WHERE at <= clock())

except by groups, counted: n
    SELECT k AS n, count(*) AS c FROM (SELECT k, count(*) AS n FROM public.a GROUP BY k EXCEPT
    SELECT k, max(z) FROM public.b GROUP BY k) GROUP BY k

nested aggregates: n
    SELECT n, count(*) AS groups FROM (SELECT g, count(*) AS n FROM public.a GROUP BY g) GROUP BY n

global of groups: n
    SELECT max(n) AS n FROM (SELECT g, count(*) AS n FROM public.a GROUP BY g)

hidden group: n
    SELECT n, count(*) AS groups FROM (SELECT count(*) AS n FROM public.a GROUP BY g, k) GROUP BY n

cte twice: g, other
    WITH t AS (SELECT g, count(*) AS n, max(k) AS k FROM public.a GROUP BY g) SELECT x.g, y.g AS other FROM t x
    JOIN t y ON y.n = x.k

plain cte twice: id, other
    WITH t AS (SELECT id, n + 1 AS m, k FROM public.a WHERE n > 0) SELECT x.id, y.id AS other FROM t x JOIN t y
    ON y.k = x.m

left join of groups: id
    SELECT a.id, t.n FROM public.a a LEFT JOIN (SELECT k, count(*) AS n FROM public.b GROUP BY k) t ON t.k = a.k

left join of a computed column: id, b
    SELECT a.id, t.id AS b, t.one FROM public.a a LEFT JOIN (SELECT id, k, 1 AS one FROM public.b WHERE z > 0) t
    ON t.k = a.k

left join of a join: id, b, y
    SELECT a.id, t.id AS b, t.y FROM public.a a LEFT JOIN (SELECT b.id, b.k, c.y FROM public.b b JOIN public.c c
    ON c.x = b.z) t ON t.k = a.k

join of a left join: x, y, id
    SELECT c.x, c.y, t.id, t.z FROM public.c c JOIN (SELECT a.id, a.g, b.z FROM public.a a LEFT JOIN public.b b
    ON b.id = a.k) t ON t.g = c.g

using: id, b
    SELECT k, a.id, b.id AS b FROM public.a a JOIN public.b b USING (k)

clock in where: id
    SELECT id, g FROM public.a WHERE at <= clock() AND at > clock() - INTERVAL 3 MINUTES

clock strictly: id
    SELECT id, g FROM public.a WHERE clock() > at AND at + INTERVAL 2 MINUTES >= clock()

clock in a case: id, b
    SELECT a.id, b.id AS b, CASE WHEN a.at < clock() THEN 1 WHEN b.at >= clock() THEN 2 END AS s FROM public.a a
    LEFT JOIN public.b b ON b.k = a.k

clock in an aggregate: g
    SELECT g, count_if(at <= clock()) AS n, max(k) FILTER (WHERE at BETWEEN clock() - INTERVAL 2 MINUTES AND
    clock()) AS k FROM public.a GROUP BY g

clock in on: id
    SELECT a.id, count(b.id) AS n FROM public.a a LEFT JOIN public.b b ON b.k = a.k AND a.at + INTERVAL 1 MINUTE
    < clock() GROUP BY a.id

searched and not clicked: id
    SELECT s.id, CASE WHEN min(c.at) IS NOT NULL THEN 'clicked' ELSE 'not clicked' END AS outcome FROM public.a
    s LEFT JOIN public.b c ON c.k = s.id AND c.at BETWEEN s.at AND s.at + INTERVAL 3 MINUTES GROUP BY s.id, s.at
    HAVING min(c.at) IS NOT NULL OR s.at + INTERVAL 4 MINUTES <= clock()

clock over groups: g
    SELECT g, last FROM (SELECT g, max(at) AS last FROM public.a GROUP BY g) WHERE last + INTERVAL 2 MINUTES <=
    clock()

clock less a column: id
    SELECT id FROM public.a
    WHERE clock() - at > INTERVAL 2 MINUTES AND clock() - INTERVAL 1 MINUTE - at <= INTERVAL 4 MINUTES

clock in a node: n
    SELECT n, count(*) AS m FROM (SELECT g, count(*) AS n FROM public.a WHERE at <= clock() GROUP BY g) GROUP BY
    n

clock in the key: id, due
    SELECT id, at <= clock() AS due FROM public.a

clock in a group: state
    SELECT CASE WHEN at < clock() THEN 'over' WHEN at - INTERVAL 2 MINUTES <= clock() THEN 'soon' END AS state,
    count(*) AS n, max(n) AS n2 FROM public.a GROUP BY 1

clock in a group of an outer join: due, z
    SELECT coalesce(b.at, a.at) <= clock() AS due, b.z, count(*) AS n FROM public.a a LEFT JOIN public.b b ON b.k = a.k
    GROUP BY coalesce(b.at, a.at) <= clock(), b.z

clock in a group, beside an outer join: due
    SELECT a.at <= clock() AS due, count(b.id) AS n FROM public.a a LEFT JOIN public.b b ON b.k = a.k GROUP BY 1

clock in what is distinct, of a node: g
    SELECT g, count(*) AS n FROM (SELECT DISTINCT at > clock() AS due, k, g FROM public.a) GROUP BY g

clock in a partition: g, due, id
    SELECT g, at <= clock() AS due, id, row_number() OVER (PARTITION BY g, at <= clock() ORDER BY id) AS r
    FROM public.a

clock in an order: g, id
    SELECT g, id, row_number() OVER (PARTITION BY g ORDER BY CASE WHEN at <= clock() THEN 0 ELSE 1 END, id) AS r
    FROM public.a

clock in branches: due, id
    SELECT at <= clock() AS due, id, n FROM public.a UNION ALL SELECT at + INTERVAL 1 MINUTE > clock(), id + 10, z
    FROM public.b

global with the clock: n
    SELECT count(*) AS n FROM public.a WHERE at < clock()

"""

SHAPES: dict[str, tuple[str, list[str]]] = {}
for _block in _SHAPES.strip().split("\n\n"):
    _head, _, _sql = _block.partition("\n")
    _name, _, _key = _head.rpartition(": ")
    SHAPES[_name] = (_sql, _key.split(", "))
