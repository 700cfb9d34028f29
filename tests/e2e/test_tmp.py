from support import Node
import time
def test_plain(place):
    t=time.monotonic()
    g = place.graph(Node("a", attributes='acceptance="test -f a.txt", setup="true"'))
    c = place.launch(g, GARRISON_FAILPOINT_LIST=str(place.points))
    assert place.finish(c) == 0, place.told()
    print(time.monotonic()-t)
    place.check("a")
    print("\n".join(sorted(place.passed_points())))
