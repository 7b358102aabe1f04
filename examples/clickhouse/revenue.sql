-- Revenue by day and shop. The window is what makes it exact: without one, start-up refuses the view.
CREATE TABLE counted_sales_revenue (
    sold_on Date,
    shop LowCardinality(String),
    sales SimpleAggregateFunction(sum, UInt64),
    cents SimpleAggregateFunction(sum, Int64),
    customers AggregateFunction(uniqExact, String)
) ENGINE = AggregatingMergeTree
ORDER BY (sold_on, shop)
SETTINGS non_replicated_deduplication_window = 10000;

-- The view is on the table itself, counted_sales_g1, which `tidegate migrate` has made.
CREATE MATERIALIZED VIEW counted_sales_revenue_view TO counted_sales_revenue AS
SELECT sold_on, shop, count() AS sales, sum(cents) AS cents, uniqExactState(customer_id) AS customers
FROM counted_sales_g1
GROUP BY sold_on, shop;
