class Solution:
    def square(self, x):
        return x**2


square = Solution().square
lines = open(0).read().splitlines()
print(*map(square, map(int, lines)), sep="\n")
quit()
